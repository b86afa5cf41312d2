//! Standard output and standard error that outlive their reader.

use std::io::{self, ErrorKind, Write};

/// One of the two. Once the reader has gone (`warptile verify | head`), further output is dropped in silence: the
/// command goes on to its end, so that its exit code still tells the truth.
pub(crate) struct Console<W> {
    inner: W,
    reader_gone: bool,
}

impl Console<io::Stdout> {
    pub(crate) fn stdout() -> Self {
        Console::new(io::stdout())
    }
}

impl Console<io::Stderr> {
    pub(crate) fn stderr() -> Self {
        Console::new(io::stderr())
    }
}

impl<W: Write> Console<W> {
    pub(crate) fn new(inner: W) -> Self {
        Console {
            inner,
            reader_gone: false,
        }
    }

    /// `result`, or `otherwise` if it failed because the reader has gone.
    fn tolerate<T>(&mut self, result: io::Result<T>, otherwise: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                Ok(otherwise)
            }
            other => other,
        }
    }
}

impl<W: Write> Write for Console<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.reader_gone {
            return Ok(bytes.len());
        }
        let written = self.inner.write(bytes);
        self.tolerate(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.reader_gone {
            return Ok(());
        }
        let flushed = self.inner.flush();
        self.tolerate(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, then reports `kind`.
    struct Failing {
        room: usize,
        kind: ErrorKind,
    }

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(self.kind.into());
            }
            let written = bytes.len().min(self.room);
            self.room -= written;
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_after_the_reader_left_is_dropped() {
        let mut console = Console::new(Failing {
            room: 3,
            kind: ErrorKind::BrokenPipe,
        });
        for _ in 0..10 {
            writeln!(console, "more than three bytes").unwrap();
        }
        console.flush().unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut console = Console::new(Failing {
            room: 3,
            kind: ErrorKind::StorageFull,
        });
        let error = writeln!(console, "more than three bytes").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
