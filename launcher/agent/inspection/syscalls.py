"""Names of the system calls in which threads wait."""

from __future__ import annotations

import os
from typing import Final

_X86_64: Final = (
    "read:0 write:1 open:2 close:3 stat:4 poll:7 mmap:9 mprotect:10 munmap:11 brk:12 ioctl:16 pread64:17 "
    "pwrite64:18 readv:19 writev:20 select:23 sched_yield:24 msync:26 madvise:28 pause:34 nanosleep:35 "
    "sendfile:40 connect:42 accept:43 sendto:44 recvfrom:45 sendmsg:46 recvmsg:47 exit:60 wait4:61 "
    "semop:65 msgsnd:69 msgrcv:70 fcntl:72 flock:73 fsync:74 fdatasync:75 ftruncate:77 "
    "rt_sigtimedwait:128 rt_sigsuspend:130 sync:162 futex:202 io_getevents:208 getdents64:217 "
    "restart_syscall:219 clock_nanosleep:230 exit_group:231 tgkill:234 epoll_wait:232 waitid:247 openat:257 "
    "newfstatat:262 pselect6:270 ppoll:271 splice:275 epoll_pwait:281 fallocate:285 accept4:288 "
    "process_vm_readv:310 getrandom:318 copy_file_range:326 statx:332 io_uring_enter:426"
)
_AARCH64: Final = (
    "io_getevents:4 epoll_pwait:22 fcntl:25 ioctl:29 flock:32 ftruncate:46 fallocate:47 openat:56 "
    "close:57 getdents64:61 read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 sendfile:71 "
    "pselect6:72 ppoll:73 splice:76 sync:81 fsync:82 fdatasync:83 exit:93 exit_group:94 waitid:95 "
    "futex:98 nanosleep:101 clock_nanosleep:115 sched_yield:124 restart_syscall:128 tgkill:131 rt_sigsuspend:133 "
    "rt_sigtimedwait:137 msgrcv:188 msgsnd:189 semop:193 accept:202 connect:203 sendto:206 recvfrom:207 "
    "sendmsg:211 recvmsg:212 brk:214 munmap:215 mmap:222 mprotect:226 msync:227 madvise:233 accept4:242 "
    "wait4:260 process_vm_readv:270 getrandom:278 copy_file_range:285 statx:291 io_uring_enter:426"
)

NUMBERS: Final = {
    name: int(number)
    for name, _, number in (
        word.partition(":") for word in {"x86_64": _X86_64, "aarch64": _AARCH64}.get(os.uname().machine, "").split()
    )
}
NAMES: Final = {number: name for name, number in NUMBERS.items()}
