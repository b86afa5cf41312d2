//! A generation from the three best.

use std::collections::{BTreeMap, BTreeSet};

use super::archive::{Candidate, Genes, How, Lineage, Verdict};
use super::format::SHARED_MEMORY;
use crate::instances::Knobs;

/// Parents of a generation.
const PARENTS: usize = 3;

/// Draws before the neighbourhood counts as searched. As many for a generation of which some candidates are there already.
const DRAWS: usize = 2000;

/// From where on shared memory is what a kernel waits for.
const SHARED_MEMORY_BOUND: f64 = 80.0;

/// Numbers that look random and follow from a seed (SplitMix64).
#[derive(Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    /// One below `limit`, which is above 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }
}

/// The parents of the next generation, the best first.
///
/// A candidate goes by its gain over what is in use. What was shipped and not timed here goes by `known`, its speed by the rates
/// that were measured before, over the best of those that are shipped. Nothing else that was not timed is bred from: a guess is no merit.
#[must_use]
pub(crate) fn parents<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    known: &BTreeMap<String, f64>,
) -> Vec<&'a Candidate> {
    let candidates: Vec<&Candidate> = candidates.collect();
    let rate = |candidate: &Candidate| match candidate.verdict {
        Verdict::Shipped => known.get(&candidate.kernel).copied(),
        _ => None,
    };
    let best = { candidates.iter() }
        .filter_map(|one| rate(one))
        .fold(0.0, f64::max);
    let merit = |candidate: &Candidate| match candidate.verdict.measured() {
        Some(measured) => measured.trials.first().map(|one| one.median),
        None => rate(candidate).map(|rate| rate / best),
    };
    let mut ranked: Vec<(f64, &Candidate)> = candidates
        .into_iter()
        .filter_map(|candidate| Some((merit(candidate)?, candidate)))
        .collect();
    ranked.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.kernel.cmp(&other.kernel)));
    ranked
        .into_iter()
        .take(PARENTS)
        .map(|(_, one)| one)
        .collect()
}

/// Whether the rules of the family hold.
fn is_allowed(genes: &Genes, knobs: &Knobs) -> bool {
    knobs
        .rules
        .iter()
        .all(|rule| rule.holds(&|name| genes.value(name)))
}

/// The value of a knob next to `now`: above it if `up`.
fn next(values: &[u32], now: u32, up: bool) -> Option<u32> {
    match up {
        true => values.iter().copied().find(|&value| value > now),
        false => values.iter().copied().rev().find(|&value| value < now),
    }
}

/// A knob and its place in the genes.
type Knob = (
    &'static str,
    fn(&Knobs) -> &[u32],
    fn(&mut Genes) -> &mut u32,
);

const KNOBS: [Knob; 4] = [
    (
        "block_m",
        |knobs| &knobs.block_m,
        |genes| &mut genes.block_m,
    ),
    (
        "block_n",
        |knobs| &knobs.block_n,
        |genes| &mut genes.block_n,
    ),
    ("warps", |knobs| &knobs.warps, |genes| &mut genes.warps),
    ("stages", |knobs| &knobs.stages, |genes| &mut genes.stages),
];

/// What the counters and the grid of a parent suggest: a knob, its direction, and why.
fn hints(parent: &Candidate, multiprocessors: u32) -> Vec<(usize, bool, String)> {
    let mut hints = Vec::new();
    if let Some(&percent) = parent.counters.get(SHARED_MEMORY)
        && percent > SHARED_MEMORY_BOUND
    {
        let why = format!("shared memory at {percent:.0}% of its peak: more keys a block");
        hints.push((1, true, why));
    }
    let few = parent
        .ctas
        .iter()
        .find(|&(_, &ctas)| ctas < u64::from(multiprocessors));
    if let Some((problem, ctas)) = few {
        let why =
            format!("{ctas} CTAs for {multiprocessors} multiprocessors at `{problem}`: fewer rows");
        hints.push((0, false, why));
    }
    hints
}

/// `parent` with one knob moved to its next value. Where no rule allows that alone, the warps move along: they are dealt to rows.
fn moved(parent: &Genes, knobs: &Knobs, knob: usize, up: bool) -> Option<(Genes, String)> {
    let (name, values, place) = KNOBS[knob];
    let mut genes = parent.clone();
    let now = *place(&mut genes);
    let value = next(values(knobs), now, up)?;
    *place(&mut genes) = value;
    let what = format!("{name} {now} to {value}");
    if is_allowed(&genes, knobs) {
        return Some((genes, what));
    }
    let warps = genes.warps;
    let with = |warps| Genes {
        warps,
        ..genes.clone()
    };
    { knobs.warps.iter() }
        .map(|&other| with(other))
        .filter(|genes| is_allowed(genes, knobs))
        .min_by_key(|genes| genes.warps.abs_diff(warps))
        .map(|genes| {
            let what = format!("{what}, warps {warps} to {}", genes.warps);
            (genes, what)
        })
}

fn mutated(parent: &Candidate, knobs: &Knobs, draw: &mut Draw) -> Option<(Genes, Lineage)> {
    let lineage = |why| Lineage {
        how: How::Mutation,
        parents: vec![parent.kernel.clone()],
        why,
    };
    let choice = draw.below(KNOBS.len() + usize::from(!knobs.switches.is_empty()));
    if choice == KNOBS.len() {
        let switch = draw.of(&knobs.switches)?;
        let mut genes = parent.genes.clone();
        let why = match genes.switches.iter().position(|one| one == switch) {
            Some(at) => {
                genes.switches.remove(at);
                format!("without {switch}")
            }
            None => {
                genes.switches.push(switch.clone());
                genes.switches.sort();
                format!("with {switch}")
            }
        };
        return Some((genes, lineage(why)));
    }
    let (genes, why) = moved(&parent.genes, knobs, choice, draw.below(2) == 1)?;
    Some((genes, lineage(why)))
}

fn crossed(parents: &[&Candidate], knobs: &Knobs, draw: &mut Draw) -> Option<(Genes, Lineage)> {
    let (one, other) = (draw.of(parents)?, draw.of(parents)?);
    if one.genes.head_dim != other.genes.head_dim || one.kernel == other.kernel {
        return None;
    }
    let mut genes = one.genes.clone();
    let mut theirs = other.genes.clone();
    let mut taken = Vec::new();
    for (name, _, place) in KNOBS {
        if draw.below(2) == 1 {
            *place(&mut genes) = *place(&mut theirs);
            taken.push(name);
        }
    }
    if draw.below(2) == 1 {
        genes.switches = theirs.switches;
        taken.push("switches");
    }
    is_allowed(&genes, knobs).then(|| {
        let lineage = Lineage {
            how: How::Crossover,
            parents: vec![one.kernel.clone(), other.kernel.clone()],
            why: format!("{} of the second", taken.join(", ")),
        };
        (genes, lineage)
    })
}

/// So many mutations, one after the other.
fn walked(
    parent: &Candidate,
    steps: usize,
    knobs: &Knobs,
    draw: &mut Draw,
) -> Option<(Genes, Lineage)> {
    let (mut genes, mut lineage) = mutated(parent, knobs, draw)?;
    for _ in 1..steps {
        let between = Candidate {
            genes,
            ..parent.clone()
        };
        let (further, by) = mutated(&between, knobs, draw)?;
        genes = further;
        lineage.why = format!("{}, then {}", lineage.why, by.why);
    }
    Some((genes, lineage))
}

/// Up to `count` candidates that are not known yet: what the parents' counters and grids suggest, then mutations and crossovers in
/// turn, then pairs of mutations. Fewer if the neighbourhood of the parents has no more.
#[must_use]
pub(crate) fn generation(
    parents: &[&Candidate],
    known: &BTreeSet<Genes>,
    knobs: &Knobs,
    multiprocessors: u32,
    count: usize,
    draw: &mut Draw,
) -> Vec<(Genes, Lineage)> {
    let mut known = known.clone();
    let mut made = Vec::new();
    let mut add = |(genes, lineage): (Genes, Lineage), made: &mut Vec<(Genes, Lineage)>| {
        if made.len() < count && known.insert(genes.clone()) {
            made.push((genes, lineage));
        }
    };
    for parent in parents {
        for (knob, up, why) in hints(parent, multiprocessors) {
            if let Some((genes, what)) = moved(&parent.genes, knobs, knob, up) {
                let lineage = Lineage {
                    how: How::Hint,
                    parents: vec![parent.kernel.clone()],
                    why: format!("{why} ({what})"),
                };
                add((genes, lineage), &mut made);
            }
        }
    }
    // One step first. Where that finds nothing new any more, two.
    for steps in [1, 2] {
        for turn in 0..DRAWS {
            if made.len() == count {
                return made;
            }
            let child = match turn % 3 {
                2 if steps == 1 => crossed(parents, knobs, draw),
                _ => draw
                    .of(parents)
                    .and_then(|parent| walked(parent, steps, knobs, draw)),
            };
            if let Some(child) = child {
                add(child, &mut made);
            }
        }
    }
    made
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::evolve::archive::{Measured, Trial};
    use crate::evolve::rules::Rule;

    pub(crate) fn knobs() -> Knobs {
        let rules = ["block_m == 16 * warps", "stages * block_n <= 256"];
        Knobs {
            block_m: vec![16, 32, 64, 128],
            block_n: vec![32, 64, 128],
            warps: vec![1, 2, 4, 8],
            stages: vec![1, 2, 3],
            switches: vec!["-DX".to_owned()],
            rules: { rules.into_iter() }
                .map(|rule| Rule::try_from(rule.to_owned()).unwrap())
                .collect(),
        }
    }

    pub(crate) fn candidate(kernel: &str, numbers: [u32; 5], verdict: Verdict) -> Candidate {
        let [head_dim, block_m, block_n, warps, stages] = numbers;
        Candidate {
            kernel: kernel.to_owned(),
            generation: 0,
            genes: Genes {
                head_dim,
                block_m,
                block_n,
                warps,
                stages,
                switches: Vec::new(),
            },
            lineage: Lineage {
                how: How::Seed,
                parents: Vec::new(),
                why: String::new(),
            },
            report: None,
            ctas: BTreeMap::new(),
            counters: BTreeMap::new(),
            verdict,
        }
    }

    fn lost(median: f64) -> Verdict {
        Verdict::Lost(Measured {
            device: String::new(),
            driver: String::new(),
            program: String::new(),
            date: String::new(),
            tried: 1,
            blocks: 20,
            trials: vec![Trial {
                median,
                bound: None,
            }],
            held_out: Vec::new(),
            problems: BTreeMap::new(),
            why: String::new(),
        })
    }

    const TILE: [u32; 5] = [64, 64, 64, 4, 2];

    #[test]
    fn parents_are_the_three_best_of_what_was_measured() {
        // Rates of other families say nothing of this one.
        let known = [
            ("slow", 50.0),
            ("fast", 100.0),
            ("slower", 40.0),
            ("another family", 900.0),
        ];
        let known = BTreeMap::from(known.map(|(name, rate)| (name.to_owned(), rate)));
        let all = [
            candidate("slow", TILE, Verdict::Shipped),
            candidate("fast", TILE, Verdict::Shipped),
            candidate("slower", TILE, Verdict::Shipped),
            // Nobody knows how fast: no parent.
            candidate("unknown", TILE, Verdict::Shipped),
            candidate("compiled", TILE, Verdict::Compiled),
            candidate("spills", TILE, Verdict::Refused { reasons: vec![] }),
            candidate(
                "wrong",
                TILE,
                Verdict::Wrong {
                    what: String::new(),
                },
            ),
            candidate("better", TILE, lost(1.1)),
            candidate("near", TILE, lost(0.9)),
        ];
        let best = parents(all.iter(), &known);
        let names: Vec<_> = best.iter().map(|one| one.kernel.as_str()).collect();
        assert_eq!(names, ["better", "fast", "near"]);
    }

    #[test]
    fn candidates_keep_the_rules_and_are_new() {
        let seeds = [
            candidate("a", TILE, Verdict::Shipped),
            candidate("b", [64, 128, 32, 8, 3], Verdict::Shipped),
            candidate("c", [128, 32, 32, 2, 1], Verdict::Shipped),
        ];
        let parents: Vec<&Candidate> = seeds.iter().collect();
        let known: BTreeSet<Genes> = seeds.iter().map(|one| one.genes.clone()).collect();
        let made = |seed| generation(&parents, &known, &knobs(), 132, 12, &mut Draw(seed));
        let first = made(7);
        assert_eq!(first.len(), 12);
        let mut all = known.clone();
        let mut ways = BTreeSet::new();
        for (genes, lineage) in &first {
            assert!(is_allowed(genes, &knobs()), "{genes:?}");
            assert!(all.insert(genes.clone()), "{genes:?} is known");
            assert!(!lineage.parents.is_empty() && !lineage.why.is_empty());
            ways.insert(format!("{:?}", lineage.how));
        }
        assert!(
            ways.contains("Mutation") && ways.contains("Crossover"),
            "{ways:?}"
        );
        // The same seed draws the same.
        assert_eq!(first, made(7));
        assert_ne!(first, made(8));
        // A neighbourhood has an end: what one change reaches comes first, then what two reach, and no more.
        let all = generation(&parents[2..], &known, &knobs(), 132, 200, &mut Draw(1));
        let changes = |genes: &Genes| {
            let of = |genes: &Genes| {
                [
                    genes.block_m,
                    genes.block_n,
                    genes.stages,
                    genes.switches.len() as u32,
                ]
            };
            of(genes)
                .iter()
                .zip(of(&seeds[2].genes))
                .filter(|(a, b)| **a != *b)
                .count()
        };
        let single = all
            .iter()
            .take_while(|(genes, _)| changes(genes) == 1)
            .count();
        assert!((4..8).contains(&single), "{single}");
        assert!(all.len() < 30 && all.len() > single, "{}", all.len());
        assert!(
            all[single..]
                .iter()
                .all(|(_, by)| by.why.contains(", then "))
        );
    }

    #[test]
    fn counters_and_grids_give_hints() {
        let mut parent = candidate("a", TILE, Verdict::Shipped);
        let hinted = |parent: &Candidate| {
            let known = BTreeSet::from([parent.genes.clone()]);
            let made = generation(&[parent], &known, &knobs(), 132, 9, &mut Draw(1));
            let hints = made.into_iter().filter(|(_, by)| by.how == How::Hint);
            hints.map(|(genes, _)| genes).collect::<Vec<_>>()
        };
        assert!(hinted(&parent).is_empty());
        parent.counters.insert(SHARED_MEMORY.to_owned(), 79.0);
        parent.ctas.insert("p".to_owned(), 132);
        assert!(hinted(&parent).is_empty());
        parent.counters.insert(SHARED_MEMORY.to_owned(), 91.0);
        parent.ctas.insert("p".to_owned(), 131);
        let [wider, shorter] = &hinted(&parent)[..] else {
            panic!("two hints are expected")
        };
        assert_eq!((wider.block_m, wider.block_n), (64, 128));
        // The warps go with the rows.
        assert_eq!(
            (shorter.block_m, shorter.block_n, shorter.warps),
            (32, 64, 2)
        );
    }
}
