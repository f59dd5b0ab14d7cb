"""Stand-ins for CUDA's libraries, so that torch's CUDA build is imported where there is no device and no CUDA.

`python cuda_stubs.py TORCH_LIB OUT`: reads which functions torch's libraries want of each, and writes libraries of the
same names that have them. Every function returns 1, an error in all of these interfaces: a call that should not have
been made fails. About 200 kB in place of 2.6 GB. Needs gcc and readelf.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

LIBRARIES = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
)
# the others' functions carry their library's name as a version
BY_PREFIX = {
    "nccl": "libnccl.so.2",
    "cusparseLt": "libcusparseLt.so.0",
    "cuFile": "libcufile.so.0",
    "nvshmem": "libnvshmem_host.so.3",
}
Versions = Mapping[str, set[str]]  # symbol version, or "" for none, to function names


def undefined_symbols(library: Path) -> Iterator[tuple[str, str]]:
    """Names and versions of what a library expects others to define."""
    table = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
    for columns in map(str.split, table.splitlines()):
        if len(columns) >= 8 and columns[6] == "UND":
            name, _, version = columns[7].partition("@")
            yield name, version.lstrip("@")


def provider(name: str, version: str) -> str | None:
    if version in LIBRARIES:
        return version
    return next((library for prefix, library in BY_PREFIX.items() if name.startswith(prefix)), None)


def wanted_functions(torch_libraries: Path) -> dict[str, Versions]:
    wanted: dict[str, dict[str, set[str]]] = {library: defaultdict(set) for library in LIBRARIES}
    for path in torch_libraries.glob("*.so"):
        for name, version in undefined_symbols(path):
            library = provider(name, version)
            if library is not None:
                wanted[library][version].add(name)
    return dict(wanted)


def assembly(versions: Versions) -> str:
    names = sorted(set().union(*versions.values()))
    labels = "".join(f".globl {name}\n.type {name},@function\n{name}:\n" for name in names)
    return f'.text\n{labels}mov $1,%eax\nret\n.section .note.GNU-stack,"",@progbits\n'


def version_script(versions: Versions) -> str:
    named = {version: " ".join(f"{name};" for name in sorted(names)) for version, names in versions.items() if version}
    return "".join(f"{version} {{ {names} }};\n" for version, names in named.items())


def write_library(library: str, versions: Versions, folder: Path) -> None:
    source, script = folder / "stub.s", folder / "stub.map"
    source.write_text(assembly(versions))
    script.write_text(version_script(versions))
    versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    output = ["-o", folder / library, source, f"-Wl,-soname,{library}"]
    command = ["gcc", "-shared", "-nostdlib", "-s", *output, *versioned]
    subprocess.run(command, check=True)
    source.unlink()
    script.unlink()


def main(torch_libraries: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library, versions in wanted_functions(torch_libraries).items():
        write_library(library, versions, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
