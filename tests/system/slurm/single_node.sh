#!/usr/bin/env bash
# A whole SLURM on this machine: one node on loopback with one GPU that is none, for the tests marked `slurm`.
#
#   single_node.sh up DIR      write its configuration, state and logs to DIR, start it, wait until the node is idle
#   single_node.sh down DIR    end it
#
# Needs root and the programs of Debian's packages slurm-wlm and munge; no systemd, no network but loopback.
# Where slurmdbd and mariadb-server are installed too, it keeps accounting, so that sacct answers.
set -euo pipefail

die() {
    echo "$0: $*" >&2
    exit 1
}

[[ $# == 2 ]] || die "usage: $0 up|down DIR"
mkdir -p "$2"
here=$(cd "$2" && pwd)
run=$here/run
# The executor plugin takes SLURM_CONF out of the environment, so that the commands must find the configuration here.
etc=/etc/slurm

daemon() { # name, command...
    local name=$1
    shift
    "$@" </dev/null >>"$here/log/$name.out" 2>&1 || die "$name does not start; see $here/log/$name.out and $here/log/$name.log"
}

keeps_accounting() {
    type slurmdbd mariadbd mariadb-install-db >/dev/null 2>&1
}

accounting() { # its lines of slurm.conf
    if keeps_accounting; then
        printf 'AccountingStorage%s\n' Type=accounting_storage/slurmdbd Host=localhost Port=26819 "Pass=$run/munge.socket"
        echo AccountingStoreFlags=job_comment
    else
        echo AccountingStorageType=accounting_storage/none
    fi
}

start_database() {
    mariadb-install-db --user=root --datadir="$here/mysql" --auth-root-authentication-method=normal --skip-test-db \
        >"$here/log/mariadb-install-db.out" 2>&1
    mariadbd --user=root --datadir="$here/mysql" --socket="$run/mysql.socket" --pid-file="$run/mariadbd.pid" --skip-networking \
        </dev/null >"$here/log/mariadbd.out" 2>&1 &
    cat >"$here/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=26819
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
LogFile=$here/log/slurmdbd.log
PidFile=$run/slurmdbd.pid
CONF
    chmod 600 "$here/slurmdbd.conf"
    ln -sf "$here/slurmdbd.conf" "$etc/"
    wait_for test -S "$run/mysql.socket"
    MYSQL_UNIX_PORT=$run/mysql.socket daemon slurmdbd slurmdbd
    wait_for timeout 5 sacctmgr --noheader show cluster
    sacctmgr --immediate add cluster tests >/dev/null
}

wait_for() { # command...
    local _
    for _ in {1..120}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.5
    done
    die "waited for a minute for: $*; see $here/log"
}

idle() {
    [[ $(timeout 5 sinfo --noheader --format=%T) == idle ]]
}

up() {
    local program
    for program in munged slurmctld slurmd sinfo sbatch srun; do
        command -v "$program" >/dev/null || die "there is no $program; install slurm-wlm and munge"
    done
    [[ $(id -u) == 0 ]] || die "only root can start it"
    [[ ! -e $etc/slurm.conf && ! -e $etc/gres.conf ]] || die "$etc is in use: this machine has a SLURM, which stays as it is"
    mkdir -p "$here"/{log,run,spool,state} "$etc"
    chmod 700 "$here"/{log,run,state}
    (umask 077 && head -c 1024 /dev/urandom >"$here/munge.key")

    # JobAcctGather: a job that takes more memory than it asked for is killed, without cgroups, which a container may lack.
    # config_overrides: four CPUs, whatever there are, so that jobs run side by side.
    # cred_expire: a job that is started again waits for so many seconds (and not two minutes).
    cat >"$here/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=26817
SlurmdPort=26818
AuthType=auth/munge
AuthInfo=socket=$run/munge.socket,cred_expire=20
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
$(accounting)
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
JobCompType=jobcomp/none
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=600
KillWait=10
SlurmctldPidFile=$run/slurmctld.pid
SlurmdPidFile=$run/slurmd.pid
SlurmctldLogFile=$here/log/slurmctld.log
SlurmdLogFile=$here/log/slurmd.log
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
NodeName=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
CONF
    echo "NodeName=localhost Name=gpu Count=1 File=/dev/null" >"$here/gres.conf"
    ln -sf "$here/slurm.conf" "$here/gres.conf" "$etc/"

    # --force: the socket's folder is closed to other users, which munged takes for a mistake.
    daemon munged munged --force --key-file="$here/munge.key" --socket="$run/munge.socket" --pid-file="$run/munged.pid" \
        --log-file="$here/log/munged.log" --seed-file="$run/munge.seed"
    ! keeps_accounting || start_database
    daemon slurmctld slurmctld -c
    daemon slurmd slurmd -N localhost -c
    wait_for idle
}

down() {
    local name pid
    # Jobs first: a daemon that is gone can't end them.
    timeout 10 scancel --user=root 2>/dev/null || true
    for _ in {1..60}; do
        [[ -z $(timeout 5 squeue --noheader 2>/dev/null) ]] && break
        sleep 0.5
    done
    for name in slurmd slurmctld slurmdbd mariadbd munged; do
        pid=$(cat "$run/$name.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for _ in {1..60}; do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.5
        done
    done
    for name in slurm.conf gres.conf slurmdbd.conf; do
        [[ $(readlink "$etc/$name") != "$here/$name" ]] || rm "$etc/$name"
    done
}

case $1 in
up | down) "$1" ;;
*) die "usage: $0 up|down DIR" ;;
esac
