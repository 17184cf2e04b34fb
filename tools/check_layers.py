#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layers of docs/design.md, enforced: no include goes up, no circle of folders, no source outside a layer, no file
that has outgrown one idea. Prints a line per finding."""
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Lowest first. Folders of one layer may use each other in one direction only.
LAYERS = [{"core/base", "core/tensor"}, {"core/device", "core/memory"}, {"core/comm"}, {"core/module"},
          {"core/fsdp", "core/checkpoint"}, {"capi"}]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
SOURCES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)

LONGEST = 500          # lines of a file without a reason at its head
LARGEST_MEDIAN = 180
REASON = re.compile(r"Longer than \d+ lines because")


def folder_of(path):
    """The layer's folder a file belongs to; a backend is one by itself."""
    parts = path.split("/")
    if parts[:2] == ["core", "backends"]:
        return "/".join(parts[:3])
    for folder in LEVEL:
        if path.startswith(folder + "/"):
            return folder
    return None


def resolve(including, name):
    """The file of ours that an include means, relative to the root, or None."""
    for candidate in (including.parent / name, ROOT / "core" / name, ROOT / "include" / name, ROOT / name):
        if candidate.is_file() and candidate.resolve().is_relative_to(ROOT):
            return candidate.resolve().relative_to(ROOT).as_posix()
    return None


def judge(path, here, target, there):
    """Why an include is wrong, or None."""
    if target.startswith("include/"):
        if path.startswith("core/") and target != "include/tpfsdp/backend.h":
            return "the core includes no public header but backend.h"
        return None
    if path.startswith("include/"):
        return "a public header includes public headers only"
    if here.startswith("core/backends/") and there != here:
        return "a backend includes backend.h and its own files only"
    if there and there.startswith("core/backends/") and there != here:
        return "backends are reached through the tables of backend.h"
    if here in LEVEL and there in LEVEL and LEVEL[there] > LEVEL[here]:
        return "goes up"
    return None


def find_circle(edges):
    def visit(node, way):
        for following in edges.get(node, ()):
            if following in way:
                return way[way.index(following):] + [following]
            if circle := visit(following, way + [following]):
                return circle
        return None

    for start in edges:
        if circle := visit(start, [start]):
            return circle
    return None


def main():
    findings, edges, lengths = [], {}, {}
    files = [f for top in ("core", "capi", "include") for f in sorted((ROOT / top).rglob("*")) if f.suffix in SOURCES]
    for file in files:
        path, text = file.relative_to(ROOT).as_posix(), file.read_text()
        here = folder_of(path)
        lengths[path] = text.count("\n")
        if not path.startswith("include/") and here is None:
            findings.append(f"{path}: belongs to no layer")
            continue
        if lengths[path] > LONGEST and not REASON.search(text[:1500]):
            findings.append(f"{path}: {lengths[path]} lines, and no reason at its head ('{REASON.pattern}')")
        for name in INCLUDE.findall(text):
            target = resolve(file, name)
            if target is None:
                if name.startswith("tpfsdp/"):
                    findings.append(f"{path}: no such public header: {name}")
                continue
            there = folder_of(target)
            if why := judge(path, here or "", target, there):
                findings.append(f"{path} -> {target}: {why}")
            if here and there and here != there:
                edges.setdefault(here, {}).setdefault(there, path)
    if circle := find_circle(edges):
        findings.append("circle: " + " -> ".join(circle))
    median = statistics.median(lengths.values()) if lengths else 0
    if median > LARGEST_MEDIAN:
        findings.append(f"the median file has {median:.0f} lines, more than {LARGEST_MEDIAN}")
    print("\n".join(findings) + "\n" * bool(findings), end="")
    print(f"layers: {len(files)} files, median {median:.0f} lines, findings {len(findings)}")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
