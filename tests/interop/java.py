"""Java for the tests: one Maven build per Apache release, and the command line that runs a class of it.

The build is interop/pom.xml; its results stay in interop/target/<release> and are made anew only when a source file changes or
a jar is gone. A file lock keeps two pytest workers from building at once.
"""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RELEASES: Final = ("5.3.3", "4.9.7")

_PROJECT: Final = Path(__file__).parents[2] / "interop"

# 4.9.x servers and tools refuse to start without these three; 5.x is pointed to the fourth, else it would print its status reports
# among mqadmin's output.
_LOGBACK_FILES: Final = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml", "logback_5.xml")
_LOGBACK: Final = """<configuration>
  <appender name="file" class="{prefix}ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""

# What Apache's start scripts open for a Java above 8; the store unmaps its files through these.
_ADD_OPENS: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "java.util", "jdk.internal.ref", "sun.nio.ch")
)
# A test's JVM lives for seconds: start quickly, stay small, leave the cores to the others.
_SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xms64m")


def missing_tools() -> str | None:
    """Why nothing with Java can run here, or None."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    return f"interop tests need {' and '.join(missing)} on the PATH" if missing else None


@dataclass(frozen=True, slots=True)
class JavaBuild:
    """Our programs and one release of Apache's, ready to run."""

    release: str
    class_path: str

    def command(
        self,
        main_class: str,
        *arguments: str,
        home: Path,
        heap_mb: int = 256,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line of a JVM whose state and logs stay in the new folder `home`: its user's home and ROCKETMQ_HOME."""
        _make_home(home)
        system = {
            "user.home": str(home),
            "rocketmq.home.dir": str(home),
            "rmq.logback.configurationFile": str(home / "conf" / "logback_5.xml"),
            **(properties or {}),
        }
        return [
            "java",
            *_SHORT_LIVED,
            f"-Xmx{heap_mb}m",
            *_ADD_OPENS,
            *(f"-D{key}={value}" for key, value in system.items()),
            "-cp",
            self.class_path,
            main_class,
            *arguments,
        ]


def build(release: str) -> JavaBuild:
    """Compile our programs against `release`, unless that is done already."""
    target = _PROJECT / "target" / release
    target.mkdir(parents=True, exist_ok=True)
    with locked(target / "lock"):
        stamp, jars = target / "built-from", target / "classpath.txt"
        sources = fingerprint(_PROJECT, [_PROJECT / "pom.xml", *sorted((_PROJECT / "src").rglob("*.java"))])
        if not (stamp.exists() and stamp.read_text() == sources and _all_exist(jars)):
            _run_maven(release)
            stamp.write_text(sources)
        return JavaBuild(release, f"{target / 'classes'}:{jars.read_text().strip()}")


def _make_home(folder: Path) -> None:
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in _LOGBACK_FILES:
        prefix = "org.apache.rocketmq.logging." if name == "logback_5.xml" else ""
        (conf / name).write_text(_LOGBACK.format(prefix=prefix, log=folder / "apache.log"))


def _run_maven(release: str) -> None:
    command = ["mvn", "--quiet", "--batch-mode", f"-Drocketmq.version={release}", "compile"]
    done = subprocess.run(command, cwd=_PROJECT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} failed in {_PROJECT}:\n{done.stdout}{done.stderr}")


def fingerprint(folder: Path, files: Iterable[Path]) -> str:
    """Changes when a file below the folder does."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _all_exist(jars: Path) -> bool:
    return jars.exists() and all(Path(jar).exists() for jar in jars.read_text().strip().split(":"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that every process of this machine respects."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
