#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ABI as text: capi/abi/*.txt and the version script, drawn from the public headers.

  tools/abi.py extract DIR             writes symbols, layout, constants and signatures of the headers into DIR
  tools/abi.py compare [LIBRARY.so]    fails where the committed files differ from the headers, or the library's
                                       exports from the committed symbols
  tools/abi.py update                  rewrites the committed files and capi/tpfsdp.map after a wanted change

The headers are preprocessed by the C compiler and parsed as C99; sizes, offsets and values come from a small program
that the same compiler builds, so nothing here knows how a record is laid out.
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from pycparser import c_ast, c_generator, c_parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["tpfsdp/tpfsdp.h", "tpfsdp/backend.h"]
GOLDENS = ROOT / "capi" / "abi"
MAP = ROOT / "capi" / "tpfsdp.map"
CC = os.environ.get("CC", "gcc")
CFLAGS = ["-std=c99", f"-I{ROOT / 'include'}"]
INCLUDES = "".join(f"#include <{h}>\n" for h in HEADERS)

# C cannot say "may be NULL", so the parse says it by a qualifier that the headers never use.
NULLABLE_STANDS_FOR = "volatile"


def run(command, text=None):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"abi: {' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def parse():
    """The declarations of the public headers, in their order."""
    # Without __GNUC__ neither the system's headers nor ours use attributes.
    text = run([CC, *CFLAGS, "-E", "-P", "-U__GNUC__", f"-DTPFSDP_NULLABLE={NULLABLE_STANDS_FOR}", "-x", "c", "-"],
               INCLUDES)
    tree = c_parser.CParser().parse(text)
    return [d for d in tree.ext if not isinstance(d, c_ast.Pragma)]


def named(decls):
    """(functions, records, callbacks and aliases, enumerators) of our own prefix, each in header order."""
    functions, records, aliases, enumerators = [], [], [], []
    for d in decls:
        if isinstance(d, c_ast.Typedef) and d.name.startswith("tpfsdp_"):
            kind = getattr(d.type, "type", None)
            if isinstance(kind, c_ast.Struct):
                if kind.decls:
                    records.append((d.name, kind.decls))
            else:
                aliases.append(d)
        elif isinstance(d, c_ast.Decl) and isinstance(d.type, c_ast.FuncDecl) and d.name.startswith("tpfsdp_"):
            functions.append(d)
        if isinstance(getattr(d, "type", None), c_ast.Enum) and d.type.values:
            enumerators += [e.name for e in d.type.values.enumerators]
    return functions, records, aliases, enumerators


def version_of(name):
    """The release that added a function: the 'Since:' of its comment names its node in the version script."""
    return SINCE.get(name, "0.1")


def read_since():
    since = {}
    pattern = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*TPFSDP_API[^;]*?\b(tpfsdp_\w+)\(", re.S)
    for header in (ROOT / "include").glob("tpfsdp/*.h"):
        for comment, name in pattern.findall(header.read_text()):
            found = re.search(r"Since: (\d+\.\d+)", comment)
            if found:
                since[name] = found.group(1)
    return since


SINCE = read_since()


def macros():
    """Numeric macros of our prefix."""
    text = run([CC, *CFLAGS, "-E", "-dM", "-x", "c", "-"], INCLUDES)
    return sorted(re.findall(r"^#define (TPFSDP_\w+) \(?-?\d+\)?$", text, re.M))


def measure(records, enumerators):
    """Runs the program that knows: lines of layout and of constants."""
    body = []
    for name, members in records:
        body.append(f'printf("L%s size %zu align %zu\\n", "{name}", sizeof({name}), _Alignof({name}));')
        for m in members:
            body.append(f'printf("L%s.%s offset %zu size %zu\\n", "{name}", "{m.name}", offsetof({name}, {m.name}), '
                        f'sizeof((({name} *)0)->{m.name}));')
    for name in enumerators + macros():
        body.append(f'printf("C%s = %lld\\n", "{name}", (long long)({name}));')
    program = f"#include <stddef.h>\n#include <stdio.h>\n{INCLUDES}int main(void) {{\n" + "\n".join(body) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        binary = os.path.join(folder, "measure")
        run([CC, "-std=c11", f"-I{ROOT / 'include'}", "-x", "c", "-", "-o", binary], program)
        lines = run([binary]).splitlines()
    return [x[1:] for x in lines if x[0] == "L"], [x[1:] for x in lines if x[0] == "C"]


def extract():
    functions, records, aliases, enumerators = named(parse())
    if not functions:
        sys.exit("abi: no functions found in the headers")
    generator = c_generator.CGenerator()

    def text(node):
        return re.sub(rf"\b{NULLABLE_STANDS_FOR}\b", "nullable", " ".join(generator.visit(node).split()))

    layout, constants = measure(records, enumerators)
    types = {f"{name}.{m.name}": text(m) for name, members in records for m in members}
    layout = [f"{x}  {types[x.split()[0]]}" if x.split()[0] in types else x for x in layout]
    return {
        "symbols.txt": sorted(f"{d.name} TPFSDP_{version_of(d.name)}" for d in functions),
        "layout.txt": layout,
        "constants.txt": constants,
        "signatures.txt": [text(d) for d in [*aliases, *functions]],
    }


def version_script(symbols):
    nodes = {}
    for line in symbols:
        name, node = line.split()
        nodes.setdefault(node, []).append(name)
    out, previous = ["/* Written by `tools/abi.py update`; the names come from the headers. */"], ""
    for node in sorted(nodes, key=lambda n: [int(x) for x in n[len("TPFSDP_"):].split(".")]):
        out += [f"{node} {{", "  global:", *(f"    {name};" for name in nodes[node])]
        if not previous:
            out += ["  local:", "    *;"]
        out.append(f"}}{previous};")
        previous = f" {node}"
    return out


def exports(library):
    found = set()
    for line in run(["nm", "-D", "--defined-only", library]).splitlines():
        name = line.split()[-1]
        if line.split()[-2] != "A":  # the version nodes themselves
            found.add(name.replace("@@", " ").replace("@", " "))
    return found


def files(abi):
    return {**{GOLDENS / name: lines for name, lines in abi.items()}, MAP: version_script(abi["symbols.txt"])}


def compare(library):
    faults = 0
    abi = extract()
    for path, lines in files(abi).items():
        old = path.read_text().splitlines() if path.exists() else []
        difference = list(difflib.unified_diff(old, lines, "committed", "headers", lineterm="", n=0))[2:]
        changed = [x for x in difference if not x.startswith("@@")]
        if changed:
            faults += 1
            print(f"abi: {path.relative_to(ROOT)} differs from the headers; if wanted: tools/abi.py update")
            print("\n".join("  " + x for x in changed[:10]))
    if library:
        have, want = exports(library), set(abi["symbols.txt"])
        for kind, names in (("not exported", want - have), ("exported, but in no header", have - want)):
            if names:
                faults += 1
                print(f"abi: {len(names)} {kind}: {', '.join(sorted(names)[:8])}")
    if faults:
        sys.exit(1)
    sizes = ", ".join(f"{name[:-4]} {len(lines)}" for name, lines in abi.items())
    print(f"abi: {sizes}" + (", exports equal" if library else ""))


def write(pairs):
    for path, lines in pairs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def main():
    command, *rest = sys.argv[1:] or [""]
    if command == "extract" and len(rest) == 1:
        write({pathlib.Path(rest[0]) / name: lines for name, lines in extract().items()})
    elif command == "compare" and len(rest) <= 1:
        compare(rest[0] if rest else None)
    elif command == "update" and not rest:
        write(files(extract()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
