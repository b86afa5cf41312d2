//! Which file of this crate may name what another one defines: arrows between rooms point down, and no circle has more than three files.
//!
//! An arrow runs from a file to the file that defines an item which it names by a path: in a `use`, or on the spot. `mod` lines, re-exports
//! and tests draw none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Circles that are larger, by one file of each: a list that only shrinks.
const EXCEPTIONS: &[&str] = &[];

/// The rooms, by the module that has them at the crate's root: a room may name those that are listed for it and itself. All other files
/// may name everything.
const ROOMS: &[(&str, &[&str])] = &[
    ("recent", &[]),
    ("considered", &[]),
    ("error", &["considered"]),
    ("cpu", &["error"]),
    ("plan", &["error", "considered", "recent"]),
    ("gpu", &["error", "considered", "recent", "plan"]),
];

/// A path: modules from the crate's root, and perhaps an item.
type Names = Vec<String>;

#[derive(Default)]
struct Module {
    /// The file that has it.
    file: String,
    /// Names of items that it defines.
    items: BTreeSet<String>,
    /// The names that `use` lines give a path.
    aliases: BTreeMap<String, Names>,
    /// Modules all of whose names it has.
    globs: Vec<Names>,
    /// Paths that its code names.
    named: BTreeSet<Names>,
}

#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
}

fn words(path: &str) -> Names {
    path.split("::")
        .map(|name| name.trim().to_owned())
        .collect()
}

/// A source without comments, strings and what `#[cfg(test)]` or `#[cfg(doctest)]` stands before.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if matches!(line.trim(), "#[cfg(test)]" | "#[cfg(doctest)]") {
            let end = format!("{indent}}}");
            // To the end of an item of one line, or to the brace that closes it.
            for line in lines.by_ref() {
                let is_alone = line.strip_prefix(indent) == Some(line.trim());
                if line == end || is_alone && line.ends_with(';') {
                    break;
                }
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default();
        // Every second piece lies between quotes.
        code.extend(
            line.replace("'\"'", "")
                .replace("\\\"", "")
                .split('"')
                .step_by(2),
        );
        code.push('\n');
    }
    code
}

/// The paths of `a::{b, c::{self, d as e}}`, each with the name that it gets.
fn leaves(tree: &str, before: &[String], found: &mut Vec<(String, Names)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let mut before = before.to_vec();
        before.extend(
            words(head.trim().trim_end_matches("::"))
                .into_iter()
                .filter(|name| !name.is_empty()),
        );
        let (mut depth, mut start) = (0, 0);
        let inner = &rest[..rest.rfind('}').unwrap_or(rest.len())];
        for (at, letter) in inner.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    leaves(&inner[start..at], &before, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        leaves(&inner[start..], &before, found);
    } else if !tree.is_empty() {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut full = before.to_vec();
        full.extend(
            words(path)
                .into_iter()
                .filter(|name| name != "self" || before.is_empty()),
        );
        let last = full.last().cloned().unwrap_or_default();
        found.push((
            if name.is_empty() {
                last
            } else {
                name.trim().to_owned()
            },
            full,
        ));
    }
}

impl Crate {
    fn read() -> Self {
        let mut all = Crate::default();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        all.add(&source, "lib.rs", Vec::new());
        all
    }

    /// A module and those below it.
    fn add(&mut self, source: &Path, file: &str, at: Names) {
        let code = code(
            &fs::read_to_string(source.join(file))
                .unwrap_or_else(|error| panic!("{file}: {error}")),
        );
        let folder = match file {
            "lib.rs" => String::new(),
            _ => format!("{}/", file.trim_end_matches(".rs")),
        };
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        let mut rest = String::new();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let bare = line.trim_start();
            let visible = match bare.strip_prefix("pub") {
                Some(after) if after.starts_with('(') => {
                    after.split_once(") ").map_or("", |(_, item)| item)
                }
                Some(after) => after.trim_start(),
                None => bare,
            };
            if let Some(first) = visible.strip_prefix("use ") {
                let mut tree = first.to_owned();
                while !tree.contains(';') {
                    tree += lines.next().unwrap_or(";");
                }
                let mut found = Vec::new();
                leaves(tree.trim_end_matches(';'), &[], &mut found);
                for (name, path) in found {
                    match name.as_str() {
                        "*" => module.globs.push(path[..path.len() - 1].to_vec()),
                        _ => drop(module.aliases.insert(name.clone(), path)),
                    }
                    // A re-export draws no arrow.
                    if visible == bare && name != "*" {
                        module.named.insert(vec![name]);
                    }
                }
                continue;
            }
            if let Some(name) = visible
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(';'))
            {
                let mut below = at.clone();
                below.push(name.to_owned());
                self.add(source, &format!("{folder}{name}.rs"), below);
                continue;
            }
            let mut tokens = visible
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .filter(|word| !word.is_empty());
            let mut kind = tokens.next();
            while matches!(kind, Some("unsafe" | "const" | "async" | "extern")) {
                let next = tokens.clone().next();
                if kind == Some("const") && !matches!(next, Some("fn" | "unsafe")) {
                    break;
                }
                kind = tokens.next();
            }
            if matches!(
                kind,
                Some(
                    "fn" | "struct"
                        | "enum"
                        | "trait"
                        | "type"
                        | "const"
                        | "static"
                        | "union"
                        | "mod"
                        | "macro_rules"
                )
            ) && let Some(name) = tokens.next()
            {
                module.items.insert(name.to_owned());
            }
            rest += line;
            rest.push('\n');
        }
        // Paths on the spot: `a::b::c`.
        for word in rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
            let path = word.trim_matches(':');
            if path.contains("::") {
                module.named.insert(words(path));
            }
        }
        self.modules.insert(at, module);
    }

    /// The file that defines what a module calls `path`, and its name there; `None` if another crate does, or none.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Option<(&str, String)> {
        let (first, rest) = path.split_first()?;
        let module = self.modules.get(at)?;
        let below = |name: &str| {
            let mut below = at.to_vec();
            below.push(name.to_owned());
            below
        };
        if depth > 20 {
            return None;
        }
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, depth + 1),
            "self" => return self.resolve(at, rest, depth + 1),
            "super" => return self.resolve(&at[..at.len().saturating_sub(1)], rest, depth + 1),
            _ => {}
        }
        // A function may have the name of its module.
        let is_item = rest.is_empty() && module.aliases.contains_key(first);
        if !is_item && self.modules.contains_key(&below(first)) {
            return self.resolve(&below(first), rest, depth + 1);
        }
        if let Some(alias) = module.aliases.get(first) {
            let mut full = alias.clone();
            // `use name::..` of another crate, or of a module here.
            if full.first() == Some(first) && full.len() == 1 {
                return None;
            }
            full.extend_from_slice(rest);
            return self.resolve(at, &full, depth + 1);
        }
        if module.items.contains(first) {
            return Some((&module.file, first.clone()));
        }
        module.globs.iter().find_map(|glob| {
            let mut full = glob.clone();
            full.extend_from_slice(path);
            self.resolve(at, &full, depth + 1)
        })
    }

    /// From each file to those that define what it names, with the names.
    fn arrows(&self) -> BTreeMap<(&str, &str), BTreeSet<String>> {
        let mut arrows = BTreeMap::<_, BTreeSet<_>>::new();
        for (at, module) in &self.modules {
            for path in &module.named {
                if let Some((file, name)) = self.resolve(at, path, 0)
                    && file != module.file
                {
                    arrows
                        .entry((module.file.as_str(), file))
                        .or_default()
                        .insert(name);
                }
            }
        }
        arrows
    }
}

/// The room of a file.
fn room(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or_default()
}

#[test]
fn arrows_between_rooms_point_down() {
    let all = Crate::read();
    let mut wrong = Vec::new();
    for ((from, to), names) in all.arrows() {
        let allowed = ROOMS.iter().find(|(name, _)| *name == room(from));
        if let Some((own, below)) = allowed
            && room(to) != *own
            && !below.contains(&room(to))
        {
            wrong.push(format!("{from} -> {to}: {names:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_circle_has_more_than_three_files() {
    let all = Crate::read();
    let arrows = all.arrows();
    assert!(
        arrows.len() > 200,
        "too few arrows were read: {}",
        arrows.len()
    );
    let files: Vec<&str> = all
        .modules
        .values()
        .map(|module| module.file.as_str())
        .collect();
    let reached = |from: &str| {
        let mut reached = BTreeSet::from([from.to_owned()]);
        let mut next = vec![from.to_owned()];
        while let Some(file) = next.pop() {
            for (_, to) in arrows.keys().filter(|(from, _)| *from == file) {
                if reached.insert((*to).to_owned()) {
                    next.push((*to).to_owned());
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&str, BTreeSet<String>> =
        files.iter().map(|file| (*file, reached(file))).collect();
    let mut circles = BTreeSet::new();
    for file in &files {
        let circle: Vec<&str> = { reach[file].iter() }
            .filter_map(|other| reach.get_key_value(other.as_str()))
            .filter(|(_, back)| back.contains(*file))
            .map(|(other, _)| *other)
            .collect();
        if circle.len() > 3 && !circle.iter().any(|file| EXCEPTIONS.contains(file)) {
            circles.insert(circle);
        }
    }
    let report: Vec<String> = { circles.iter() }
        .map(|circle| {
            let within = arrows
                .iter()
                .filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
            let lines: Vec<String> = within
                .map(|((from, to), names)| format!("  {from} -> {to}: {names:?}"))
                .collect();
            format!(
                "a circle of {} files: {circle:?}\n{}",
                circle.len(),
                lines.join("\n")
            )
        })
        .collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
}
