//! A generation from the three best.

use std::collections::{BTreeMap, BTreeSet};

use super::archive::{Candidate, Genes, How, Lineage, NUMBERS, State};
use super::format::SHARED_MEMORY;
use super::problem::Shape;
use crate::instances::Knobs;

/// Parents of a generation.
const PARENTS: usize = 3;

/// Draws before the neighbourhood counts as searched. As many for a generation of which some candidates are there already.
const DRAWS: usize = 2000;

/// From where on shared memory is what a kernel waits for.
const SHARED_MEMORY_BOUND: f64 = 80.0;

/// Place of the warps among [`NUMBERS`].
const WARPS: usize = 2;

/// Numbers that look random and follow from a seed (SplitMix64).
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
pub(crate) fn parents<'a>(
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
    known: &BTreeMap<String, f64>,
) -> Vec<&'a Candidate> {
    let rate = |one: &Candidate| {
        let is_shipped = one.verdict.state == State::Shipped;
        known.get(&one.kernel).copied().filter(|_| is_shipped)
    };
    let best = candidates.clone().filter_map(rate).fold(0.0, f64::max);
    let merit = |one: &Candidate| one.verdict.gain().or(rate(one).map(|rate| rate / best));
    let mut ranked: Vec<(f64, &Candidate)> = candidates
        .filter_map(|one| Some((merit(one)?, one)))
        .collect();
    ranked.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.kernel.cmp(&other.kernel)));
    let best = ranked.into_iter().take(PARENTS);
    best.map(|(_, one)| one).collect()
}

/// The values among which a generation is drawn, and the grids that they make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space<'a> {
    pub(crate) knobs: &'a Knobs,
    pub(crate) family: &'a str,
    pub(crate) shapes: &'a [(&'a str, Shape)],
    pub(crate) multiprocessors: u32,
}

/// A candidate before it has a name.
type Child = (Genes, Lineage);

impl Space<'_> {
    /// The changes that the counters and the grid of a parent suggest: a number, its direction, and why.
    fn hints(&self, parent: &Candidate) -> Vec<(usize, bool, String)> {
        let mut hints = Vec::new();
        if let Some(&percent) = parent.counters.get(SHARED_MEMORY)
            && percent > SHARED_MEMORY_BOUND
        {
            let why = format!("shared memory at {percent:.0}% of its peak: more keys a block");
            hints.push((1, true, why));
        }
        let multiprocessors = self.multiprocessors;
        let ctas = |shape: &Shape| shape.ctas(self.family, parent.genes.block_m());
        let few = { self.shapes.iter() }
            .filter_map(|(problem, shape)| Some((problem, ctas(shape)?)))
            .find(|&(_, ctas)| ctas < u64::from(multiprocessors));
        if let Some((problem, ctas)) = few {
            let why = format!(
                "{ctas} CTAs for {multiprocessors} multiprocessors at `{problem}`: fewer rows"
            );
            hints.push((0, false, why));
        }
        hints
    }

    /// `parent` with one number moved to its next value. Where no rule allows that alone, the warps move along: they are dealt to rows.
    fn moved(&self, parent: &Genes, at: usize, up: bool) -> Option<(Genes, String)> {
        let (now, values) = (parent.numbers[at], self.knobs.values()[at]);
        let value = match up {
            true => values.iter().find(|&&value| value > now),
            false => values.iter().rev().find(|&&value| value < now),
        };
        let mut genes = parent.clone();
        genes.numbers[at] = *value?;
        let what = format!("{} {now} to {}", NUMBERS[at], value?);
        if self.knobs.allow(&genes) {
            return Some((genes, what));
        }
        let warps = genes.numbers[WARPS];
        let with = |&other: &u32| {
            let mut genes = genes.clone();
            genes.numbers[WARPS] = other;
            genes
        };
        let allowed = self
            .knobs
            .warps
            .iter()
            .map(with)
            .filter(|genes| self.knobs.allow(genes));
        let genes = allowed.min_by_key(|genes| genes.numbers[WARPS].abs_diff(warps))?;
        let what = format!("{what}, warps {warps} to {}", genes.numbers[WARPS]);
        Some((genes, what))
    }

    fn mutated(&self, parent: &Genes, draw: &mut Draw) -> Option<(Genes, String)> {
        let switches = &self.knobs.switches;
        let choice = draw.below(NUMBERS.len() + usize::from(!switches.is_empty()));
        if choice < NUMBERS.len() {
            return self.moved(parent, choice, draw.below(2) == 1);
        }
        let switch = draw.of(switches)?;
        let mut genes = parent.clone();
        genes.switches.retain(|one| one != switch);
        if genes.switches.len() < parent.switches.len() {
            return Some((genes, format!("without {switch}")));
        }
        genes.switches.push(switch.clone());
        genes.switches.sort();
        Some((genes, format!("with {switch}")))
    }

    fn crossed(&self, parents: &[&Candidate], draw: &mut Draw) -> Option<Child> {
        let (one, other) = (draw.of(parents)?, draw.of(parents)?);
        if one.genes.head_dim != other.genes.head_dim || one.kernel == other.kernel {
            return None;
        }
        let (mut genes, mut taken) = (one.genes.clone(), Vec::new());
        for (at, name) in NUMBERS.into_iter().enumerate() {
            if draw.below(2) == 1 {
                genes.numbers[at] = other.genes.numbers[at];
                taken.push(name);
            }
        }
        if draw.below(2) == 1 {
            genes.switches.clone_from(&other.genes.switches);
            taken.push("switches");
        }
        let why = format!("{} of the second", taken.join(", "));
        let child = (genes, lineage(How::Crossover, &[one, other], why));
        self.knobs.allow(&child.0).then_some(child)
    }

    /// So many mutations, one after the other.
    fn walked(&self, parent: &Candidate, steps: usize, draw: &mut Draw) -> Option<Child> {
        let (mut genes, mut reasons) = (parent.genes.clone(), Vec::new());
        for _ in 0..steps {
            let (further, why) = self.mutated(&genes, draw)?;
            genes = further;
            reasons.push(why);
        }
        Some((
            genes,
            lineage(How::Mutation, &[parent], reasons.join(", then ")),
        ))
    }

    /// Up to `count` candidates that are not known yet: what the parents' counters and grids suggest, then mutations and crossovers in
    /// turn, then pairs of mutations. Fewer if the neighbourhood of the parents has no more.
    pub(crate) fn generation(
        &self,
        parents: &[&Candidate],
        known: &BTreeSet<Genes>,
        count: usize,
        draw: &mut Draw,
    ) -> Vec<Child> {
        let (mut known, mut made) = (known.clone(), Vec::new());
        let mut add = |child: Option<Child>, made: &mut Vec<Child>| {
            let is_new = |child: &Child| made.len() < count && known.insert(child.0.clone());
            made.extend(child.filter(is_new));
        };
        for parent in parents {
            for (at, up, why) in self.hints(parent) {
                let child = self.moved(&parent.genes, at, up);
                let named = |what| lineage(How::Hint, &[parent], format!("{why} ({what})"));
                add(child.map(|(genes, what)| (genes, named(what))), &mut made);
            }
        }
        // One step first. Where that finds nothing new any more, two.
        for steps in [1, 2] {
            for turn in 0..DRAWS {
                if made.len() == count {
                    return made;
                }
                let child = match turn % 3 {
                    2 if steps == 1 => self.crossed(parents, draw),
                    _ => { draw.of(parents) }.and_then(|parent| self.walked(parent, steps, draw)),
                };
                add(child, &mut made);
            }
        }
        made
    }
}

fn lineage(how: How, parents: &[&Candidate], why: String) -> Lineage {
    let parents = parents.iter().map(|one| one.kernel.clone()).collect();
    Lineage { how, parents, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evolve::archive::{Measured, Trial, Verdict};
    use crate::evolve::rules::Rule;

    fn knobs() -> Knobs {
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

    fn candidate(kernel: &str, numbers: [u32; 5], state: State) -> Candidate {
        of_verdict(kernel, numbers, Verdict::of(state, ""))
    }

    fn of_verdict(kernel: &str, numbers: [u32; 5], verdict: Verdict) -> Candidate {
        let [head_dim, numbers @ ..] = numbers;
        Candidate {
            kernel: kernel.to_owned(),
            generation: 0,
            genes: Genes {
                head_dim,
                numbers,
                switches: Vec::new(),
            },
            lineage: Lineage {
                how: How::Seed,
                parents: Vec::new(),
                why: String::new(),
            },
            report: None,
            counters: BTreeMap::new(),
            verdict,
        }
    }

    fn lost(median: f64) -> Verdict {
        let bound = None;
        Verdict {
            measured: Some(Measured {
                trials: vec![Trial { median, bound }],
                ..Measured::default()
            }),
            ..Verdict::of(State::Lost, "")
        }
    }

    fn space<'a>(knobs: &'a Knobs, shapes: &'a [(&'a str, Shape)]) -> Space<'a> {
        Space {
            knobs,
            family: "wmma",
            shapes,
            multiprocessors: 132,
        }
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
            candidate("slow", TILE, State::Shipped),
            candidate("fast", TILE, State::Shipped),
            candidate("slower", TILE, State::Shipped),
            // Nobody knows how fast: no parent.
            candidate("unknown", TILE, State::Shipped),
            candidate("compiled", TILE, State::Compiled),
            candidate("spills", TILE, State::Refused),
            candidate("wrong", TILE, State::Wrong),
            of_verdict("better", TILE, lost(1.1)),
            of_verdict("near", TILE, lost(0.9)),
        ];
        let best = parents(all.iter(), &known);
        let names: Vec<_> = best.iter().map(|one| one.kernel.as_str()).collect();
        assert_eq!(names, ["better", "fast", "near"]);
    }

    #[test]
    fn candidates_keep_the_rules_and_are_new() {
        let seeds = [
            candidate("a", TILE, State::Shipped),
            candidate("b", [64, 128, 32, 8, 3], State::Shipped),
            candidate("c", [128, 32, 32, 2, 1], State::Shipped),
        ];
        let parents: Vec<&Candidate> = seeds.iter().collect();
        let known: BTreeSet<Genes> = seeds.iter().map(|one| one.genes.clone()).collect();
        let knobs = knobs();
        let space = space(&knobs, &[]);
        let made = |seed| space.generation(&parents, &known, 12, &mut Draw(seed));
        let first = made(7);
        assert_eq!(first.len(), 12);
        let mut all = known.clone();
        let mut ways = BTreeSet::new();
        for (genes, lineage) in &first {
            assert!(knobs.allow(genes), "{genes:?}");
            assert!(all.insert(genes.clone()), "{genes:?} is known");
            assert!(!lineage.parents.is_empty() && !lineage.why.is_empty());
            ways.insert(format!("{:?}", lineage.how));
        }
        assert!(
            ways.contains("Mutation") && ways.contains("Crossover"),
            "{ways:?}"
        );
        // A seed always draws the same candidates.
        assert_eq!(first, made(7));
        assert_ne!(first, made(8));
        // A neighbourhood has an end: what one change reaches comes first, then what two reach, and no more.
        let all = space.generation(&parents[2..], &known, 200, &mut Draw(1));
        let changes = |genes: &Genes| {
            let before = seeds[2].genes.numbers.iter().enumerate();
            // The warps go with the rows.
            let moved = before.filter(|&(at, number)| at != WARPS && genes.numbers[at] != *number);
            moved.count() + genes.switches.len()
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
        let mut parent = candidate("a", TILE, State::Shipped);
        let knobs = knobs();
        let hinted = |parent: &Candidate, heads: usize| {
            let shape = Shape::parse(&format!("q64 k64 h{heads} d64 f16")).unwrap();
            let shapes = [("p", shape)];
            let known = BTreeSet::from([parent.genes.clone()]);
            let made = space(&knobs, &shapes).generation(&[parent], &known, 9, &mut Draw(1));
            let hints = made.into_iter().filter(|(_, by)| by.how == How::Hint);
            hints.map(|(genes, _)| genes.numbers).collect::<Vec<_>>()
        };
        parent.counters.insert(SHARED_MEMORY.to_owned(), 79.0);
        assert!(hinted(&parent, 132).is_empty());
        parent.counters.insert(SHARED_MEMORY.to_owned(), 91.0);
        // More keys; fewer rows, and the warps with them.
        assert_eq!(hinted(&parent, 131), [[64, 128, 4, 2], [32, 64, 2, 2]]);
    }
}
