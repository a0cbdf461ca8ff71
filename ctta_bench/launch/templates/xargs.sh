#!/bin/sh
# Any shell: sh xargs.sh   (four commands at a time; a second call runs what is left)
tr '\n' '\0' < @file | xargs -0 -P 4 -n 1 sh -c
