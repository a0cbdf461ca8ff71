#!/usr/bin/env bash
# A real Slurm on one Debian machine, as root, without systemd or cgroups: munge, MariaDB, slurmdbd,
# slurmctld and a slurmd for each of the virtual nodes n1, n2, ... For tests; nothing is mocked.
#
#   cluster.sh install           the packages; no service of theirs is started
#   cluster.sh start             everything, under $CTTA_SLURM_DIR; returns when all nodes are idle
#   cluster.sh env               the lines that a shell needs:  eval "$(cluster.sh env)"
#   cluster.sh lose NODE         the node dies: its slurmd, its step daemons and its jobs, at once
#   cluster.sh bring NODE        it comes back
#   cluster.sh away              the controller dies at once; jobs run on
#   cluster.sh back              it comes back, with its state
#   cluster.sh stop              ends what start began, and removes $CTTA_SLURM_DIR
#
# CTTA_SLURM_DIR   $HOME/.ctta-slurm     everything that is written lies here
# CTTA_SLURM_PORT  27817                 slurmctld; +1 slurmdbd, +2 MariaDB, +10+I the slurmd of nI
# CTTA_SLURM_NODES 4                     nodes of 4 CPUs, 4000 MB and one pretended GPU each
# CTTA_SLURM_ARRAY 4                     jobs an array: so few that a small grid needs several
set -euo pipefail

dir=${CTTA_SLURM_DIR:-$HOME/.ctta-slurm}
port=${CTTA_SLURM_PORT:-27817}
nodes=${CTTA_SLURM_NODES:-4}
array=${CTTA_SLURM_ARRAY:-4}
export PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C SLURM_CONF=$dir/slurm.conf
socket=$dir/munge.sock
database=$dir/db.sock
programs="munged slurmctld slurmd slurmdbd sbatch sacct mariadbd mariadb-install-db"

fail() { echo "cluster.sh: $*" >&2; exit 1; }
names() { seq -f 'n%g' 1 "$nodes"; }

# -- processes: pid and start time in a file, so that no other process of that number is ended
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" {print $20}'; }
lives() { # lives NAME
    local pid since
    read -r pid since 2>/dev/null <"$dir/pid/$1" && [ -n "$since" ] && [ "$(born "$pid")" = "$since" ]
}
begin() { # begin NAME command...
    local name=$1; shift
    setsid "$@" </dev/null >>"$dir/log/$name" 2>&1 3>&- 9>&- &
    echo "$! $(born $!)" >"$dir/pid/$name"
}
finish() { # finish NAME SIGNAL
    local pid _
    lives "$1" || { rm -f "$dir/pid/$1"; return 0; }
    read -r pid _ <"$dir/pid/$1"
    kill "-$2" "$pid" 2>/dev/null || true
    for _ in $(seq 150); do lives "$1" || { rm -f "$dir/pid/$1"; return 0; }; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$dir/pid/$1"
}
until_works() { # until_works NAME command...: the daemon NAME may need a while
    local name=$1 _; shift
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return 0
        lives "$name" || fail "$name ended at once, see $dir/log/$name: $(tail -n 3 "$dir/log/$name")"
        sleep 0.2
    done
    fail "$name is not ready after a minute, see $dir/log/$name"
}

# -- configuration
configure() {
    local host i
    host=$(hostname -s)
    mkdir -p "$dir"/{log,pid,state,gpu}
    head -c 1024 /dev/urandom >"$dir/munge.key"
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/password"
    cat >"$dir/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$((port + 1))
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 2))
StorageUser=slurm
StoragePass=$(cat "$dir/password")
StorageLoc=accounting
PidFile=$dir/slurmdbd.pid
END
    chmod 600 "$dir"/{munge.key,password,slurmdbd.conf}
    cat >"$SLURM_CONF" <<END
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits for its credential to expire; five seconds are the least.
AuthInfo=socket=$socket,cred_expire=5
StateSaveLocation=$dir/state/controller
SlurmdSpoolDir=$dir/state/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmdLogFile=$dir/log/%n.slurmd
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
MaxArraySize=$array
SlurmctldTimeout=10
SlurmdTimeout=5
KillWait=3
MessageTimeout=5
TCPTimeout=2
BatchStartTimeout=3
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$socket
AccountingStorageTRES=gres/gpu
END
    for i in $(seq "$nodes"); do
        mkdir -p "$dir/state/n$i"
        # A GPU has to be a character device for its job to hear of it.
        ln -sfn /dev/null "$dir/gpu/n$i"
        echo "NodeName=n$i Name=gpu File=$dir/gpu/n$i" >>"$dir/gres.conf"
        echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 10 + i)) CPUs=4 RealMemory=4000 Gres=gpu:1"
    done >>"$SLURM_CONF"
    cat >>"$SLURM_CONF" <<END
PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE DefaultTime=60 PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=n[1-$nodes] MaxTime=INFINITE DefaultTime=60 PriorityTier=10 PreemptMode=off
END
}

start_database() {
    mariadb-install-db --no-defaults --user=root --datadir="$dir/db" --skip-test-db \
        --auth-root-authentication-method=normal >"$dir/log/mariadb-install" 2>&1
    begin mariadbd mariadbd --no-defaults --user=root --datadir="$dir/db" --socket="$database" \
        --pid-file="$dir/mariadbd.pid" --bind-address=127.0.0.1 --port=$((port + 2)) \
        --skip-name-resolve --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
        --innodb-flush-log-at-trx-commit=0 --innodb-use-native-aio=0 --performance-schema=0
    until_works mariadbd sql 'select 1'
    sql "create database accounting; create user 'slurm'@'127.0.0.1' identified by '$(cat "$dir/password")';
         grant all on accounting.* to 'slurm'@'127.0.0.1';"
}
sql() { mariadb --no-defaults --socket="$database" -u root <<<"$1"; }

idle() { sinfo -h -n "$1" -o %T | grep -qxE 'idle|mixed|allocated'; }
start_node() {
    begin "$1" slurmd -D -N "$1" -f "$SLURM_CONF"
    until_works "$1" idle "$1"
}

install() {
    local program said missing=
    for program in $programs; do command -v "$program" >/dev/null || missing="$missing $program"; done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "not here:$missing; and no apt-get (Debian, Ubuntu) to install Slurm with"
    [ "$(id -u)" = 0 ] || fail "not here:$missing; only root can install Slurm"
    # Lists of packages that are there already may do.
    apt-get -qq -o Acquire::http::Timeout=20 update >/dev/null 2>&1 || true
    said=$(RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::http::Timeout=20 \
        install -y --no-install-recommends \
        munge slurmctld slurmd slurm-client slurmdbd mariadb-server procps 2>&1) ||
        fail "not here:$missing; and apt-get cannot install Slurm: $(tail -n 1 <<<"$said")"
}
start() {
    local program name
    [ "$(id -u)" = 0 ] || fail "has to be root"
    for program in $programs; do command -v "$program" >/dev/null || fail "no $program: cluster.sh install"; done
    [ ! -e "$dir" ] || stop
    configure
    begin munged munged --foreground --force --num-threads=10 --key-file="$dir/munge.key" \
        --socket="$socket" --pid-file="$dir/munged.pid" --seed-file="$dir/munge.seed"
    until_works munged munge -S "$socket" -n
    start_database
    begin slurmdbd slurmdbd -D
    until_works slurmdbd sacctmgr -n -P list cluster
    sacctmgr -i add cluster tests >/dev/null
    begin slurmctld slurmctld -D -i -f "$SLURM_CONF"
    until_works slurmctld scontrol ping
    for name in $(names); do start_node "$name"; done
}

# Job processes leave the tree of slurmd. They and their step daemons are known by what only this
# cluster's have: its slurm.conf and the node's name in the environment.
processes_of() {
    local place files
    # The step daemons first: one that outlived its job would report how it ended. They hold the
    # log of their node open.
    for place in $(grep -ls '^slurmstepd' /proc/[0-9]*/comm); do
        place=$(dirname "$place")
        files=$(readlink "$place"/fd/* 2>/dev/null || true)
        grep -qxF -- "$dir/log/$1.slurmd" <<<"$files" && basename "$place"
    done
    for place in $(grep -lszxF -- "SLURMD_NODENAME=$1" /proc/[0-9]*/environ); do
        grep -qszxF -- "SLURM_CONF=$SLURM_CONF" "$place" && basename "$(dirname "$place")"
    done
    true
}
end_processes() {
    local pids _
    for _ in $(seq 10); do
        pids=$(processes_of "$1")
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086
        kill -KILL $pids 2>/dev/null || true
        sleep 0.2
    done
    fail "processes of $1 still run: $pids"
}
lose() {
    finish "$1" KILL
    end_processes "$1"
    scontrol update nodename="$1" state=down reason=lost
}
bring() { start_node "$1"; }
away() { finish slurmctld KILL; }
back() {
    begin slurmctld slurmctld -D -f "$SLURM_CONF"
    until_works slurmctld scontrol ping
}

stop() {
    local name
    [ -d "$dir/pid" ] || return 0
    if lives slurmctld; then
        squeue -h -o %A 2>/dev/null | sort -u | xargs -r scancel 2>/dev/null || true
        for _ in $(seq 50); do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.2; done
    fi
    for name in $(names); do finish "$name" TERM; end_processes "$name"; done
    for name in slurmctld slurmdbd mariadbd munged; do finish "$name" TERM; done
    [ ! -f "$dir/munge.key" ] || rm -rf "$dir"
}

case ${1:-} in
install | start | stop | away | back) "$1" ;;
lose | bring) [ -n "${2:-}" ] || fail "$1 which node?"; "$1" "$2" ;;
env) printf 'export SLURM_CONF=%q PATH=%q\n' "$SLURM_CONF" "$PATH" ;;
*) sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
