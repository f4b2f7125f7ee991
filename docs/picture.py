"""The picture of the terminal in the README: what `dload demo` prints on a terminal, as an SVG. Made anew by

    python docs/picture.py docs/demo.svg

The names of this machine, its user and its folders are replaced; everything else is as it was printed.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import pty
import re
import socket
import struct
import sys
import tempfile
import termios
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS, ROWS = 100, 50
FIRST, LAST = "# Commit the folder", "# Read one sample"  # the lines that are shown, the last one excluded
CHARACTER, LINE, MARGIN = 8.43, 19, 24
STYLES = {"1": "font-weight:bold", "2": "fill:#8a93a6"}
TYPED = re.compile(r"(#|\$|>>>) ")
COLOURS = {"#": "#7fb77e", "$": "#e6c07b", ">>>": "#e6c07b"}


def printed(arguments: list[str], folder: str) -> str:
    """All that a command writes to a terminal of its own."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", TMPDIR=folder)
        os.environ.pop("NO_COLOR", None)
        os.execvp(arguments[0], arguments)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    chunks = []
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # what Linux says when the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{' '.join(arguments)} failed:\n{b''.join(chunks).decode()}")
    return b"".join(chunks).decode()


def lines(text: str) -> list[str]:
    """What stays on the screen: of each line what follows the last time that it was cleared, styles included."""
    return [line.rstrip("\r").rpartition("\x1b[K")[2].rpartition("\r")[2] for line in text.split("\n")]


def without_this_machine(line: str, folder: str) -> str:
    line = re.sub(rf"{re.escape(folder)}/dload-demo-\w+", "~/demo", line)
    here = f"{getpass.getuser()}@{socket.gethostname()}"
    return line.replace(here, "ada@lab".ljust(len(here)))


def drawn(line: str, row: int) -> str:
    """One line as SVG: runs of one style, and what was typed or said in colours."""
    runs, style = "", ""
    typed = TYPED.match(line)
    if typed:
        style = f"fill:{COLOURS[typed[1]]}"
    for number, part in enumerate(re.split(r"\x1b\[(\d*)m", line)):
        if number % 2:
            style = STYLES.get(part, "")
        elif part:
            runs += f'<tspan style="{style}">{escape(part)}</tspan>' if style else escape(part)
    return f'<text x="{MARGIN}" y="{MARGIN + 44 + row * LINE}" xml:space="preserve">{runs}</text>\n'


def picture(shown: list[str]) -> str:
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, len(shown) * LINE + 2 * MARGIN + 40
    dots = "".join(
        f'<circle cx="{MARGIN + 20 * n}" cy="24" r="6" fill="{fill}"/>'
        for n, fill in enumerate(["#ff5f57", "#febc2e", "#28c840"])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>dload demo</title>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#1e222a"/>\n{dots}\n'
        f'<g fill="#d7dae0" font-size="14" font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace">\n'
        f"{''.join(drawn(line, row) for row, line in enumerate(shown))}</g>\n</svg>\n"
    )


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        screen = lines(printed([sys.executable, "-m", "dload", "demo"], folder))
        screen = [without_this_machine(line, folder) for line in screen]
    first, last = (next(n for n, line in enumerate(screen) if line.startswith(text)) for text in (FIRST, LAST))
    target.write_text(picture(screen[first : last - 1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
