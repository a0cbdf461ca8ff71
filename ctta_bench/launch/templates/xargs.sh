#!/bin/sh
# Any shell: sh xargs.sh   (@pool commands at a time; a second call runs what is left)
@{setup}tr '\n' '\0' < @file | xargs -0 -P @pool -n 1 sh -c
