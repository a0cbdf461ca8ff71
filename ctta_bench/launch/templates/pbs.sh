#!/bin/sh
# OpenPBS: qsub pbs.sh
#PBS -N @name
#PBS -J 1-@count
#PBS -l select=1:ncpus=@cpus:ngpus=@gpus:mem=@{memory_mb}mb
#PBS -l walltime=@walltime
#PBS -r y
#PBS -j oe
exec sh -c "$(sed -n "${PBS_ARRAY_INDEX}p" @file)"
