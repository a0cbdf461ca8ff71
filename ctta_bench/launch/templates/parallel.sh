#!/bin/sh
# GNU parallel: sh parallel.sh   (four commands at a time; a second call runs what is left)
exec parallel --jobs 4 --retries 2 < @file
