#!/bin/sh
# GNU parallel: sh parallel.sh   (@pool commands at a time; a second call runs what is left)
@{setup}exec parallel --jobs @pool --retries 2 < @file
