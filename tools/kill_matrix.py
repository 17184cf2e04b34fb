#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strikes one rank of a small job of processes with every fault at every phase, and judges what all ranks tell.

  tools/kill_matrix.py [--full] [--slow] [--world 2,4] [--fault F,...] [--phase P,...] [--program PATH]

Without --full only the last rank is a victim. --slow (part of --full) adds the ranks that are 90 s late. The ranks are
tests/kill/rank.cpp. A cell counts as fired only if the victim said so just before its fault. One line a fault, then
"fired N/N, hangs N, wrong N, leaks N"; all cells are written to build/kill-matrix.json. One cell is a canary, which is
judged by what cannot come: if it is found right, the harness cannot fail.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "kill-matrix.json"
PHASES = ["join", "shard", "lazy_init", "gather", "forward", "reduce", "window", "step", "shutdown"]
IN_TREE = PHASES[2:8]
ALLOCATING = PHASES[:3]
FAULTS = {"kill": PHASES, "stop": PHASES, "exit": PHASES, "exception": PHASES, "error": IN_TREE, "slow": PHASES,
          "memory": PHASES, "fork": PHASES, "interrupt": PHASES, "close": PHASES,
          "reopen": ["gather", "forward"]}
SLOW_FAULT, SLOW_PHASES = "slow90", ["gather", "reduce", "window", "step"]
LIMIT_S = {SLOW_FAULT: 150}
DEFAULT_LIMIT_S = 30
WORST_MS = {"stop": 1500}
DEFAULT_WORST_MS = 1000
JOBS = 2

# What a rank was in. Before the first gather there are collectives of no unit.
ANY_OPERATION = (r"(waiting for the readers of )?(all-gather|reduce-scatter) at sequence \d+{unit}|"
                 r"(all-reduce|barrier|reset|shutdown|end of backward) at sequence \d+")
UNIT = r" of unit '(b\d|<root>)'"
CLOSED = r"its process \d+ runs another program, or closed the descriptors of this library"
FATES = {"stop": r"its process \d+ is stopped", "close": CLOSED, "memory": "left", "reopen": f"left|{CLOSED}"}
ENDED = r"its process \d+ has ended"
TEXTS = {
    "PEER_LOST": r"rank {victim} is lost \({fate}\) in ({operation}) on comm 'world'; restart the group$",
    "REMOTE": r"rank {victim} failed with [A-Z_]+: .* \(in place of ({operation}|sequence \d+) on comm 'world'\); "
              r"reset on every rank, then go on$",
    "CANCELLED": r"interrupted in ({operation}) on comm 'world'; missing: rank \d+ .*; {after_interrupt}$",
    "OUT_OF_MEMORY": r"no \d+ bytes of shared memory: .* \d+ are needed; raise it",
}
JOIN_TEXTS = {
    **TEXTS,
    "TIMEOUT": r"(did not find rank {victim} within|still missing: rank {victim};) .*restart the group$",
    "PEER_LOST": r"rank {victim} .*restart the group$",
    "CANCELLED": r"interrupted while rank {victim} joined comm 'world'$",
}
NO_ERROR = ()


@dataclasses.dataclass
class Cell:
    fault: str
    phase: str
    world: int
    victim: int
    expected: dict = dataclasses.field(default_factory=dict)
    seen: list = dataclasses.field(default_factory=list)
    fired: bool = False
    hang: bool = False
    wrong: list = dataclasses.field(default_factory=list)
    leaks: list = dataclasses.field(default_factory=list)
    detection_ms: list = dataclasses.field(default_factory=list)

    def name(self):
        return f"{self.fault}/{self.phase} world {self.world} victim {self.victim}"


def expect(cell):
    """For victim and peer: the statuses of the first error (empty: no error may come; None: it dies), whether training
    ends with the values of an undisturbed run, and the exit code."""
    fault, phase = cell.fault, cell.phase
    trained = phase == "shutdown"
    none = {"error": NO_ERROR, "values": True, "code": 0}
    lost = {"error": ("TIMEOUT", "PEER_LOST") if phase == "join" else ("PEER_LOST",), "values": trained, "code": 0}
    deaths = {"kill": -signal.SIGKILL, "stop": -signal.SIGKILL, "exit": 0, "exception": -signal.SIGABRT}
    if fault in deaths:
        return {"victim": {"error": None, "values": trained, "code": deaths[fault]}, "peer": lost}
    if fault == "error":
        return {"victim": none, "peer": {**none, "error": ("REMOTE",)}}
    if fault == "memory" and phase in ALLOCATING:
        return {"victim": {**none, "error": ("OUT_OF_MEMORY",), "values": False},
                "peer": {**lost, "error": ("REMOTE", "PEER_LOST") + (("TIMEOUT",) if phase == "join" else ())}}
    if fault == "reopen":
        return {"victim": {**lost, "error": ("BACKEND", "PEER_LOST")},
                "peer": {**lost, "error": ("REMOTE", "PEER_LOST")}}
    if fault == "interrupt":
        peer = {"join": lost, "shutdown": none}.get(phase, {**none, "error": ("REMOTE",)})
        return {"victim": {**none, "error": ("CANCELLED",), "values": phase != "join"}, "peer": peer}
    if fault == "close" and phase != "join":
        return {"victim": {**lost, "error": ("PEER_LOST", "ABORTED", "BACKEND")}, "peer": lost}
    return {"victim": none, "peer": none}


def start(program, cell, directory):
    ranks = []
    for rank in range(cell.world):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(cell.world), "TPFSDP_STORE": f"file:{directory}/store"}
        command = [str(program), cell.fault, cell.phase, str(cell.victim)]
        with open(f"{directory}/stderr-{rank}", "w") as stderr:
            ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=stderr, start_new_session=True))
    return ranks


def wait(cell, ranks):
    """Until all have ended by themselves, but the one that is stopped."""
    deadline = time.monotonic() + LIMIT_S.get(cell.fault, DEFAULT_LIMIT_S)
    awaited = [r for i, r in enumerate(ranks) if not (cell.fault == "stop" and i == cell.victim)]
    for rank in awaited:
        try:
            rank.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            cell.hang = True
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)


def has_group(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(cell, program):
    shared_before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="tpfsdp-kill-") as directory:
        ranks = start(program, cell, directory)
        wait(cell, ranks)
        for number, rank in enumerate(ranks):
            output, _ = rank.communicate()
            events = [json.loads(x) for x in output.decode().splitlines()]
            stderr = pathlib.Path(f"{directory}/stderr-{number}").read_text(errors="replace")
            cell.seen.append({"rank": number, "code": rank.returncode, "events": events, "stderr": stderr})
        store = pathlib.Path(directory, "store")
        cell.leaks += [f"file {x.name}" for x in store.glob("*") if not re.match("tpfsdp-(value|sum|lock)", x.name)]
    cell.leaks += [f"a process of rank {i}" for i, rank in enumerate(ranks) if has_group(rank)]
    cell.leaks += [f"/dev/shm/{x}" for x in set(os.listdir("/dev/shm")) - shared_before]
    cell.leaks += [directory] if os.path.exists(directory) else []
    return cell


def events_of(seen, kind):
    return [x for x in seen["events"] if x["event"] == kind]


def judge_text(cell, rank, error):
    pattern = (JOIN_TEXTS if cell.phase == "join" else TEXTS).get(error["status"])
    if pattern is None or (rank == cell.victim and error["status"] in ("PEER_LOST", "ABORTED", "BACKEND")):
        return
    operation = ANY_OPERATION.format(unit=f"({UNIT})?" if cell.phase in ALLOCATING else UNIT)
    after = "call it again" if cell.phase == "shutdown" else "reset on every rank, then go on"
    pattern = pattern.format(victim=cell.victim, fate=FATES.get(cell.fault, ENDED), operation=operation,
                             after_interrupt=after)
    if not re.search(pattern, error["text"]):
        cell.wrong.append(f"rank {rank}: the text \"{error['text']}\" does not say \"{pattern}\"")
    if rank != cell.victim and error["status"] in ("PEER_LOST", "REMOTE") and error["rank"] != cell.victim:
        cell.wrong.append(f"rank {rank}: names rank {error['rank']} instead of {cell.victim}")


def judge_rank(cell, seen, expected, values, fired_at):
    rank, errors = seen["rank"], events_of(seen, "error")
    say = lambda text: cell.wrong.append(f"rank {rank}: {text}")
    if seen["code"] != expected["code"]:
        say(f"ended with {seen['code']}, expected {expected['code']}: {seen['stderr'].strip()[-300:]}")
    if (expected["error"] or ()) and not errors:
        say(f"no error, expected {'/'.join(expected['error'])}")
    if not expected["error"] and errors:
        say(f"{errors[0]['status']}: {errors[0]['text']}")
    if expected["error"] and errors:
        if errors[0]["status"] not in expected["error"]:
            say(f"{errors[0]['status']}, expected {'/'.join(expected['error'])}: {errors[0]['text']}")
        judge_text(cell, rank, errors[0])
        if rank != cell.victim and fired_at and cell.phase != "join":
            cell.detection_ms.append((errors[0]["returned"] - max(fired_at, errors[0]["entered"])) / 1e6)
    hashes = [x["hash"] for x in events_of(seen, "values")]
    if hashes != ([values[rank]] if expected["values"] else []):
        say(f"values {hashes}, expected {[values[rank]] if expected['values'] else 'none'}")
    goes_on = expected["values"] and expected["error"] is not None and "PEER_LOST" not in expected["error"]
    if goes_on and len(errors) > 1:
        say(f"then {errors[1]['status']}: {errors[1]['text']}")
    ends = events_of(seen, "end")
    if len(ends) != (expected["error"] is not None):
        say(f"told {len(ends)} times that it ended")
    for end in ends:
        if goes_on != (end["status"] == "OK"):
            say(f"ended with {end['status']}")
        if end["before"] != end["after"] or end["mappings"] or end["host_mappings"]:
            cell.leaks.append(f"rank {rank}: descriptors {end['before']} -> {end['after']}, "
                              f"mappings {end['mappings']}, files of the host mapped {end['host_mappings']} times")
        if end["host_files_lost"] or end["child_faults"]:
            say(f"{end['host_files_lost']} files of the host were closed, the child had {end['child_faults']} faults")
    logs = [re.match(r"waiting for (30|60)\.\d s in .*missing: rank", x["text"]) for x in events_of(seen, "log")]
    logged = [x and x.group(1) for x in logs]
    if logged != (["30", "60"] if cell.fault == SLOW_FAULT and rank != cell.victim else []):
        say(f"logged {events_of(seen, 'log')}")


def judge(cell, values):
    fired = events_of(cell.seen[cell.victim], "fired")
    cell.fired = len(fired) == 1
    cell.expected = cell.expected or expect(cell)
    for seen in cell.seen:
        expected = cell.expected["victim" if seen["rank"] == cell.victim else "peer"]
        judge_rank(cell, seen, expected, values, fired[0]["at"] if fired else None)
    worst = WORST_MS.get(cell.fault, DEFAULT_WORST_MS)
    if max(cell.detection_ms, default=0) > worst:
        cell.wrong.append(f"seen after {max(cell.detection_ms):.0f} ms, allowed {worst}")
    return cell


def undisturbed(program, world):
    """What each rank must end with: the hash of its shards."""
    seen = run(Cell("none", "none", world, 0), program).seen
    if any(x["code"] != 0 or len(events_of(x, "values")) != 1 or events_of(x, "error") for x in seen):
        sys.exit(f"the undisturbed run of {world} ranks fails: {json.dumps(seen, indent=1)}")
    return [events_of(x, "values")[0]["hash"] for x in seen]


def canary(program, values):
    """A death whose peers are expected to time out."""
    cell = Cell("kill", "gather", 2, 1)
    cell.expected = expect(cell)
    cell.expected["peer"]["error"] = ("TIMEOUT",)
    judge(run(cell, program), values)
    return cell.fired and len(cell.wrong) == 1


def print_table(cells):
    print(f"{'fault':10} {'cells':>5} {'fired':>5} {'median ms':>9} {'worst ms':>8}  first errors of the peers")
    for fault in dict.fromkeys(x.fault for x in cells):
        group = [x for x in cells if x.fault == fault]
        times = [t for x in group for t in x.detection_ms]
        statuses = collections.Counter(
            next((e["status"] for e in events_of(seen, "error")), "none")
            for x in group for seen in x.seen if seen["rank"] != x.victim)
        median, worst = (f"{f(times):.0f}" if times else "-" for f in (statistics.median, max))
        print(f"{fault:10} {len(group):5} {sum(x.fired for x in group):5} {median:>9} {worst:>8}  "
              + ", ".join(f"{n} {s}" for s, n in statuses.most_common()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="victims 0 and last, and --slow")
    parser.add_argument("--slow", action="store_true", help="also ranks that are 90 s late")
    listed = {"type": lambda text: text.split(",")}
    parser.add_argument("--world", default=["2", "4"], **listed)
    parser.add_argument("--fault", default=list(FAULTS), **listed)
    parser.add_argument("--phase", default=PHASES, **listed)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "dev" / "kill_rank")
    arguments = parser.parse_args()
    if unknown := (set(arguments.fault) - {*FAULTS}) | (set(arguments.phase) - {*PHASES}):
        parser.error("no such fault or phase: " + ", ".join(sorted(unknown)))

    worlds = [int(x) for x in arguments.world]
    values = {world: undisturbed(arguments.program, world) for world in worlds}
    victims = lambda world: dict.fromkeys([0, world - 1] if arguments.full else [world - 1])
    cells = [Cell(fault, phase, world, victim) for fault in arguments.fault for phase in FAULTS[fault]
             if phase in arguments.phase for world in worlds for victim in victims(world)]
    late = [Cell(SLOW_FAULT, phase, world, world - 1) for phase in SLOW_PHASES for world in worlds
            if arguments.slow or arguments.full]
    both = lambda cell: judge(run(cell, arguments.program), values[cell.world])
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool, \
            concurrent.futures.ThreadPoolExecutor(max(1, len(late))) as beside:
        late_done = beside.map(both, late)
        done = [*pool.map(both, cells), *late_done]
    is_canary_seen = canary(arguments.program, values[2] if 2 in values else undisturbed(arguments.program, 2))

    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([dataclasses.asdict(x) for x in done], indent=1))
    print_table(done)
    for cell in done:
        for text in ["did not end in time"] * cell.hang + ["did not fire"] * (not cell.fired) + cell.wrong + cell.leaks:
            print(f"{cell.name()}: {text}")
    print("canary, whose expectation is wrong: " + ("found wrong" if is_canary_seen else "found right"))
    fired, hangs, leaks = sum(x.fired for x in done), sum(x.hang for x in done), sum(bool(x.leaks) for x in done)
    wrong = sum(bool(x.wrong) for x in done) + (not is_canary_seen)
    print(f"fired {fired}/{len(done)}, hangs {hangs}, wrong {wrong}, leaks {leaks}")
    sys.exit(bool(fired < len(done) or hangs or wrong or leaks or not done))


if __name__ == "__main__":
    main()
