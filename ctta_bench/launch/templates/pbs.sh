#!/bin/sh
# OpenPBS: qsub pbs.sh   (PBS Pro before 2020 knows no %N in -J: leave it out)
#PBS -N @name
#PBS -S /bin/sh
#PBS -V
@pbs_array
#PBS -l select=1:ncpus=@cpus@pbs_gpus:mem=@{memory_mb}mb
#PBS -l walltime=@walltime
#PBS -r y
#PBS -j oe
@{setup}exec sh -c "$(sed -n "${PBS_ARRAY_INDEX:-1}p" @file)"
