#!/bin/sh
# SGE: qsub sge.sh   (names of parallel environments and of GPUs differ between clusters)
#$ -N @name
#$ -S /bin/sh
#$ -t 1-@count
#$ -tc @at_once
#$ -pe smp @cpus
#$ -l h_rt=@walltime,mem_free=@{memory_mb}M@sge_gpus
#$ -r y
#$ -V
#$ -cwd
#$ -j y
@{setup}exec sh -c "$(sed -n "${SGE_TASK_ID}p" @file)"
