//! Text from outside in messages.

use std::fmt::{self, Write};

/// The beginning of a text that a user, a file or another library gave, as messages show it: on one line, with everything escaped that a
/// terminal would act on. `{:?}` puts it in double quotes.
///
/// ```
/// use warptile_spec::Excerpt;
///
/// assert_eq!(format!("unknown kernel {:?}", Excerpt::new("wmma\u{1b}[31m")), r#"unknown kernel "wmma\u{1b}[31m""#);
/// assert_eq!(Excerpt::new(&"x".repeat(1000)).to_string().len(), Excerpt::NAME + "...".len());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Excerpt<'a> {
    text: &'a str,
    limit: usize,
}

impl<'a> Excerpt<'a> {
    /// Characters of a name that are shown.
    pub const NAME: usize = 60;

    /// At most the first [`NAME`](Self::NAME) characters.
    pub const fn new(text: &'a str) -> Self {
        Excerpt::up_to(Self::NAME, text)
    }

    /// At most the first `limit` characters.
    pub const fn up_to(limit: usize, text: &'a str) -> Self {
        Excerpt { text, limit }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, is_quoted: bool) -> fmt::Result {
        for (count, symbol) in self.text.chars().enumerate() {
            match symbol {
                _ if count == self.limit => return f.write_str("..."),
                '"' | '\\' if is_quoted => write!(f, "\\{symbol}")?,
                '"' | '\'' | '\\' => f.write_char(symbol)?,
                _ => write!(f, "{}", symbol.escape_debug())?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl fmt::Debug for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.write(f, true)?;
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_but_text() {
        let hostile = "q\u{1b}[31m\r\n\u{202e}é";
        let shown = "q\\u{1b}[31m\\r\\n\\u{202e}é";
        assert_eq!(Excerpt::new(hostile).to_string(), shown);
        assert_eq!(
            format!("{:?}", Excerpt::new(hostile)),
            format!("\"{shown}\"")
        );
        assert_eq!(Excerpt::new("\"it's\" C:\\x").to_string(), "\"it's\" C:\\x");
        assert_eq!(
            format!("{:?}", Excerpt::new("it's \"C:\\x")),
            "\"it's \\\"C:\\\\x\""
        );
    }

    #[test]
    fn only_the_beginning_is_shown() {
        assert_eq!(Excerpt::up_to(3, "abc").to_string(), "abc");
        assert_eq!(Excerpt::up_to(3, "äöüß").to_string(), "äöü...");
        assert_eq!(format!("{:?}", Excerpt::up_to(2, "abc")), "\"ab...\"");
    }
}
