"""From a grid to results: in this process, in a pool on this machine, or on Slurm."""
