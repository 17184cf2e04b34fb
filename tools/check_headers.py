#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the public headers: each compiles alone, strictly, in every language mode; each function is documented;
names follow the house, and none is a keyword in a language with a binding. Prints a line per finding."""
import concurrent.futures
import keyword
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = sorted((ROOT / "include" / "tpfsdp").glob("*.h"))

MODES = [("gcc", "c", "c99"), ("gcc", "c", "c17"), ("g++", "c++", "c++17"), ("g++", "c++", "c++20"),
         ("clang-19", "c", "c99"), ("clang++-19", "c++", "c++20")]
STRICT = ["-pedantic-errors", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-fsyntax-only"]

CPP = set("""alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
typename union unsigned using virtual void volatile wchar_t while xor xor_eq final override""".split())
RUST = set("""as break const continue crate else enum extern false fn for if impl in let loop match mod move mut pub ref
return self Self static struct super trait true type unsafe use where while async await dyn abstract become box do final
macro override priv typeof unsized virtual yield try gen union raw safe""".split())
JAVA = set("""abstract assert boolean break byte case catch char class const continue default do double else enum extends
final finally float for goto if implements import instanceof int interface long native new package private protected
public return short static strictfp super switch synchronized this throw throws transient try void volatile while true
false null _ var record yield sealed permits""".split())
PYTHON = set(keyword.kwlist) | set(keyword.softkwlist) | {"print", "exec", "self"}
C_WORDS = set("const int void struct typedef enum extern double char float unsigned static sizeof if else return".split())

# A header's functions are named after it, except where one header describes several nouns.
NOUNS = {"base": ["handle"], "list": ["list", "blob"], "module": ["module", "hook"], "root": ["root", "shards"],
         "policy": ["mixed_precision_policy", "offload_policy", "data_parallel_mesh_dims"]}
THIRD_PARTY = re.compile(r"#\s*include\s*[<\"](cuda|nccl|mpi|dlpack)")

findings = []


def say(header, *words):
    findings.append(f"{header.name}: " + " ".join(map(str, words)))


def compile_alone(job):
    header, (compiler, language, standard) = job
    done = subprocess.run([compiler, "-x", language, f"-std={standard}", *STRICT, f"-I{ROOT / 'include'}", "-"],
                          input=f"#include <tpfsdp/{header.name}>\n", capture_output=True, text=True)
    if done.returncode:
        return header, f"does not compile alone with {compiler} as {standard}: {done.stderr.strip().splitlines()[0]}"
    return None


def check_compilation():
    present = [m for m in MODES if shutil.which(m[0])]
    jobs = [(header, mode) for header in HEADERS for mode in present]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for fault in pool.map(compile_alone, jobs):
            if fault:
                say(*fault)
    return len(jobs)


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r'"[^"\n]*"', '""', text)
    text = re.sub(r"template <class Record>.*?\n\}\n", "", text, flags=re.S)  # the C++ half of TPFSDP_INIT
    return re.sub(r"^\s*#.*(\\\n.*)*$", "", text, flags=re.M)


def check_keywords(header, text):
    for word in sorted(set(re.findall(r"[A-Za-z_]\w*", without_comments(text))) - C_WORDS):
        for language, words in (("C++", CPP), ("Rust", RUST), ("Java", JAVA), ("Python", PYTHON)):
            if word in words:
                say(header, "keyword of", language, ":", word)


FUNCTION = re.compile(r"(/\*\*(?:(?!\*/).)*?\*/\n)?TPFSDP_API(.*?)\b(tpfsdp_\w+)\(([^;]*?)\) TPFSDP_NOEXCEPT;", re.S)


def check_functions(header, text, names):
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    declared = text.count("TPFSDP_API")
    functions = FUNCTION.findall(text)
    if declared != len(functions):
        say(header, declared, "TPFSDP_API, but", len(functions), "declarations of the form API type name(...) NOEXCEPT;")
    for comment, result, name, arguments in functions:
        if name in names:
            say(header, name, "is declared twice")
        names.add(name)
        if not comment:
            say(header, name, "has no comment right above it")
        elif not re.search(r"Since: \d+\.\d+\.", comment):
            say(header, name, "has no 'Since:'")
        status = "tpfsdp_status" in result
        if status and header.stem != "error":
            if not re.search(r"tpfsdp_error \*\*error\s*$", arguments):
                say(header, name, "returns a status, but its last argument is not the error")
            if "CHECK_RESULT" not in result:
                say(header, name, "returns a status without TPFSDP_CHECK_RESULT")
        check_arguments(header, name, [a.strip() for a in arguments.split(",")])
        if not any(f"{name}_".startswith(f"tpfsdp_{noun}_") for noun in NOUNS.get(header.stem, [header.stem])):
            say(header, name, "is not named after its header")
        if name.endswith("_init") and name != "tpfsdp_tensor_view_init":
            say(header, name, ": TPFSDP_INIT is the initializer")


def check_arguments(header, name, arguments):
    output_seen = False
    for a in arguments:
        if "**" in a and "error" not in a and "const *" not in a and not re.search(r"\*\*out_", a):
            say(header, name, "has an output that is not called out_:", a)
        if re.search(r"\bsize_t\b|\bbool\b|\blong\b", a):
            say(header, name, "has an integer without a fixed width:", a)
        if re.search(r"\bout_\w+$", a):
            output_seen = True
        elif output_seen and not a.endswith("error") and not name.endswith("view_init"):
            say(header, name, "has an input after an output:", a)


def check_error_names(header, text, codes):
    text = re.sub(r"\s*\n \* ", " ", text)
    for listed in re.findall(r"Errors: (.*?)(?= PyTorch:| Since:|\n)", text):
        for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", re.sub(r"\(.*?\)", "", listed)):
            if word not in codes:
                say(header, "names an error that does not exist:", word)


def check_records(header, text):
    for record, first in re.findall(r"typedef struct (tpfsdp_\w+(?:_options|_info)) \{\s*([^;]*);", text):
        if first != "uint32_t struct_size":
            say(header, record, "does not begin with struct_size")
    for name, body in re.findall(r"typedef int32_t (tpfsdp_\w+);\nenum \{(.*?)\};", text, re.S):
        if name in ("tpfsdp_status", "tpfsdp_toggle"):
            continue
        if "_UNKNOWN = -1" not in body or not re.search(r"_(DEFAULT|AUTO|UNSPECIFIED) = 0", body):
            say(header, name, "lacks _UNKNOWN = -1, or a 0 called _DEFAULT, _AUTO or _UNSPECIFIED")


def main():
    if not HEADERS:
        sys.exit("headers: none under include/tpfsdp")
    compilations = check_compilation()
    codes = set(re.findall(r"TPFSDP_ERR_(\w+) = ", (ROOT / "include/tpfsdp/base.h").read_text()))
    names = set()
    for header in HEADERS:
        text = header.read_text()
        check_keywords(header, text)
        check_functions(header, text, names)
        check_records(header, text)
        if header.stem != "base":
            check_error_names(header, text, codes)
        if THIRD_PARTY.search(text):
            say(header, "includes a third-party header")
    for name in sorted(names):
        if "_try_" in name and name.replace("_try_", "_") not in names:
            findings.append(f"{name} has no form that waits")
    print("\n".join(findings) + "\n" * bool(findings), end="")
    print(f"headers: {len(HEADERS)}, functions {len(names)}, compilations {compilations}, findings {len(findings)}")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
