"""Refuses system calls of this process that reach other processes, the network or the machine, through seccomp.

It runs in the limited child, so it imports little. Only x86-64 and aarch64 have a table here.
"""

import ctypes
import os
import struct

#: Name -> its number on x86-64 and on aarch64; None where there is no such call.
#: Landlock does not watch changes of mode, owner, times and attributes; so those are refused here.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239), "prctl": (157, 167),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "personality": (135, 92),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "vhangup": (153, 58), "quotactl": (179, 60), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}  # fmt: skip
#: Calls whose first argument names a process: only this one. `prlimit64` also takes 0 for it.
_OWN_PROCESS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "prlimit64": (302, 261)}
#: `fcntl`, and the second arguments that have the kernel send signals to somebody: F_SETOWN, F_SETSIG, F_SETOWN_EX.
_FCNTL, _SENDING = (72, 25), (8, 10, 15)
#: `ioctl`, and what alone may be asked of it: whether a file is a terminal and how large, how much there is to read,
#: whether it is inherited, whether it blocks. Others change attributes, which Landlock does not watch, or more.
_IOCTL, _HARMLESS = (16, 29), (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5450, 0x5451, 0x5421)
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), 435, 0x00010000
#: Calls that came after this table are not there at all.
_FIRST_UNKNOWN = 463
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _NOT_PERMITTED, _NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_Step = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("steps", ctypes.c_char_p)]


def refuse_calls(threads: bool) -> bool:
    """Refuse those system calls to this process and its threads, for ever.

    Args:
        threads: whether it may start threads. It starts no processes in any case.

    Returns:
        whether this is a machine with a table and a kernel with seccomp; elsewhere nothing is refused.
    """
    if (machine := _MACHINES.get(os.uname().machine)) is None:
        return False
    steps = _steps(*machine, threads, os.getpid())
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    failed: int = libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(steps), code)), 0, 0)
    return failed == 0


def _steps(column: int, architecture: int, threads: bool, own: int) -> list[_Step]:
    """The filter: (operation, steps to skip if true, if false, operand) each. Jumps lead forward by at most 255."""
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), _return(_KILL), (_LOAD, 0, 0, _NUMBER)]
    steps += [(_AT_LEAST, 0, 1, _FIRST_UNKNOWN), _return(_NO_SUCH_CALL)]  # those of x32 are above it too
    steps += [(_EQUAL, 0, 1, _CLONE3), _return(_NO_SUCH_CALL)]  # its flags cannot be read here; libc then takes clone
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), _return(_NOT_PERMITTED)]
    for name, pair in _OWN_PROCESS.items():
        allowed = [own, 0] if name == "prlimit64" else [own]
        steps += _when(pair[column], _FIRST, [(_EQUAL, one) for one in allowed], _ALLOW, _NOT_PERMITTED)
    steps += _when(_FCNTL[column], _SECOND, [(_EQUAL, one) for one in _SENDING], _NOT_PERMITTED, _ALLOW)
    steps += _when(_IOCTL[column], _SECOND, [(_EQUAL, one) for one in _HARMLESS], _ALLOW, _NOT_PERMITTED)
    cloned = _ALLOW if threads else _NOT_PERMITTED
    steps += _when(_CLONE[column], _FIRST, [(_ANY_BIT, _CLONE_THREAD)], cloned, _NOT_PERMITTED)
    return [*steps, _return(_ALLOW)]


def _when(number: int, place: int, tests: list[tuple[int, int]], then: int, otherwise: int) -> list[_Step]:
    """For one call: `then` if its argument passes any test."""
    last = len(tests) - 1
    judged = [(operation, last - i + 1, 0, operand) for i, (operation, operand) in enumerate(tests)]
    body = [(_LOAD, 0, 0, place), *judged, _return(otherwise), _return(then)]
    return [(_EQUAL, 0, len(body), number), *body]


def _return(value: int) -> _Step:
    return (_RETURN, 0, 0, value)
