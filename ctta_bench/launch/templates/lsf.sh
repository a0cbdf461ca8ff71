#!/bin/sh
# LSF: bsub < lsf.sh
#BSUB -J "@name[1-@count]@limit"
#BSUB -n @cpus
#BSUB -R "span[hosts=1] rusage[mem=@{memory_mb}MB]"
@lsf_gpus
#BSUB -W @minutes
#BSUB -r
#BSUB -o %J.%I.out
@{setup}exec sh -c "$(sed -n "${LSB_JOBINDEX}p" @file)"
