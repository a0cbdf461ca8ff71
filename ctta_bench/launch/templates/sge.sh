#!/bin/sh
# SGE: qsub sge.sh   (names of parallel environments and of GPUs differ between clusters)
#$ -N @name
#$ -t 1-@count
#$ -pe smp @cpus
#$ -l h_rt=@walltime,mem_free=@{memory_mb}M@sge_gpus
#$ -r y
#$ -V
exec sh -c "$(sed -n "${SGE_TASK_ID}p" @file)"
