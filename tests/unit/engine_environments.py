"""Recorded environments of ranks under other engines, without variables that say nothing of the ranks."""

from __future__ import annotations

TORCHRUN = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "39445",
    "RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "52931cd8-c1eb-4fe8-8a4a-fda323fe5d6a",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "WORLD_SIZE": "2",
}

TORCHRUN_ON_TWO_NODES = TORCHRUN | {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "node1",
    "RANK": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "4",
}

OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "711131137",
    "OMPI_MCA_orte_ess_num_procs": "2",
    "OMPI_MCA_orte_hnp_uri": "711131136.0;tcp://192.0.2.2,198.51.100.7:44029;tcp6://[fd00::2]:55165",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_HOSTNAME": "vm",
    "PMIX_ID": "711131137.1",
    "PMIX_NAMESPACE": "711131137",
    "PMIX_RANK": "1",
    "PMIX_VERSION": "4.2.2rc2",
}

OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_num_procs": "2",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_VERSION": "5.0.11",
    "OMPI_WORLD_LOCAL_SIZE": "2",
    "OMPI_WORLD_SIZE": "2",
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "prterun-vm-18436@1",
    "PMIX_RANK": "0",
    "PRTE_LAUNCHED": "1",
}

HYDRA = {
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "vm",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}

HOROVODRUN = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "192.0.2.2",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "37123",
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
}

TORCH_DISTRIBUTED = {
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "RANK": "1",
    "WORLD_SIZE": "2",
}

SLURM_STEP = {
    "SLURMD_NODENAME": "n1",
    "SLURM_GTIDS": "0,1",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "interactive",  # also of what srun starts in the shell of salloc
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.2",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2",
}

SLURM_STEP_ON_TWO_NODES = SLURM_STEP | {
    "SLURMD_NODENAME": "n2",
    "SLURM_GTIDS": "2",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}

SLURM_BATCH_SCRIPT = {
    "SLURMD_NODENAME": "n1",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NAME": "b.sh",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}

SLURM_INTERACTIVE_SHELL = {
    "SLURMD_NODENAME": "n1",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "5",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_PTY_PORT": "44895",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}

SLURM_SHELL_OF_SALLOC = {
    "SLURM_JOB_ID": "4",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
}
