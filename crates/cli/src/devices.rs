//! `--devices`: several devices that compute each problem together.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use warptile::kernels::Kind;
use warptile::spec::{AlibiShape, Operand};
use warptile::{Backend, ElementType, Splits};
use warptile_check::{Case, LayoutKind, Lengths, Used};
use warptile_distributed::{Error, Expected, Group, RowMap, Scheme, Sharding, Shards};

use crate::bench::decoding;
use crate::cases;
use crate::failure::Failure;
use crate::options::{Device, word};
use crate::team::Team;
use crate::text;

/// Several devices, and how they share the work.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SeveralArgs {
    /// Compute each problem on several devices together: GPUs of this machine, such as 0,1, or cpu,cpu (a thread each)
    ///
    /// The problem is attention of a sequence, or of several, to itself: bN qN or packed=, with as many keys as queries. bench also takes q1
    /// with more keys: a step of decoding, whose keys are dealt out by pages. A GPU may be there several times. GPUs copy from each other's memory, unless --engine says otherwise; without access to it the command fails.
    #[arg(long, value_name = "DEVICE,DEVICE,...")]
    pub(crate) devices: Option<Devices>,

    /// With GPUs as --devices: what moves the bytes [default: peers]
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,

    /// With --devices: how a call is computed [default: gather]
    #[arg(long, value_enum)]
    pub(crate) scheme: Option<By>,

    /// With --devices: how the rows of one sequence are dealt out [default: zigzag under a mask, else contiguous]
    ///
    /// Several sequences are dealt out as a whole, except for long ones.
    #[arg(long, value_enum)]
    pub(crate) sharding: Option<Deal>,
}

/// The mover of bytes between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// GPUs copy from each other's memory.
    Peers,
    /// NCCL; each GPU has a thread with a rank of its own.
    Nccl,
}

/// How several devices compute a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Each device computes its own rows and fetches the keys that they see.
    Gather,
    /// Each device computes all rows of some heads.
    Heads,
    /// As on two hosts: by heads among the devices of a half, which fetch the other half's keys.
    Hybrid,
}

impl By {
    /// Those for one host, in the order of preference where both take the same time.
    pub(crate) const ALL: [By; 2] = [By::Gather, By::Heads];

    pub(crate) fn scheme(self) -> Scheme {
        match self {
            By::Gather => Scheme::Gather,
            By::Heads => Scheme::Heads,
            By::Hybrid => Scheme::Hybrid { hosts: HOSTS },
        }
    }
}

/// How many hosts the devices of one stand for.
const HOSTS: usize = 2;

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme().fmt(f)
    }
}

/// How the rows of one sequence are dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deal {
    /// Two chunks a device, of equal causal work.
    Zigzag,
    /// Each half of the rows in zigzag: shorter chunks, of which the last tiles end closer together.
    TwoZigzags,
    /// One chunk a device.
    Contiguous,
}

impl Deal {
    fn sharding(self) -> Sharding {
        match self {
            Deal::Zigzag => Sharding::Zigzag,
            Deal::TwoZigzags => Sharding::Zigzags(2),
            Deal::Contiguous => Sharding::Contiguous,
        }
    }
}

/// The devices of a group, by rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Devices(Vec<Device>);

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let device = |word: &str| match (word.parse(), word.parse()) {
            (Ok(ordinal), _) => Ok(Device::Cuda(ordinal)),
            (_, Ok(device @ (Device::Cpu | Device::Cuda(_)))) => Ok(device),
            _ => Err(format!(
                "`{}` is not a device; devices are GPUs such as 0,1, or cpu,cpu",
                text::name(word)
            )),
        };
        let devices: Vec<_> = text.split(',').map(device).collect::<Result<_, _>>()?;
        let cpus = devices.iter().filter(|device| **device == Device::Cpu);
        match (devices.len(), cpus.count()) {
            (0 | 1, _) => Err("there must be at least two, such as 0,1 or cpu,cpu".to_owned()),
            (all, cpus) if cpus == 0 || cpus == all => Ok(Devices(devices)),
            _ => Err("devices are all GPUs, or all the CPU".to_owned()),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter().map(|device| match device {
            Device::Cuda(ordinal) => ordinal.to_string(),
            other => other.to_string(),
        });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

/// No call of a group is waited for longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

impl Devices {
    /// Opens the first device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_first(&self) -> Result<Backend, Failure> {
        self.0[0].open().map_err(|failure| self.named(failure))
    }

    /// The failure of a device, with the argument.
    fn named(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Device(why) => Failure::Device(format!("--devices {self}: {why}")),
            other => other,
        }
    }

    /// Opens the devices for an engine: the memory of each GPU to the others, or NCCL.
    ///
    /// # Errors
    /// [`Failure::Device`] with the argument, if a device or NCCL cannot be had, or a device has no access to another.
    fn open(&self, engine: Option<Engine>) -> Result<Team, Failure> {
        let backends = self.0.iter().map(|device| device.open());
        let team = match engine {
            Some(Engine::Nccl) => backends
                .collect::<Result<Vec<_>, _>>()
                .and_then(|backends| Team::nccl(&backends)),
            _ => backends.collect::<Result<_, _>>().and_then(Team::local),
        };
        team.map_err(|failure| self.named(failure))
    }
}

/// A problem dealt out to devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dealt {
    pub(crate) by: By,
    pub(crate) sharding: Sharding,
    /// The rows of all sequences.
    pub(crate) len: usize,
}

impl Dealt {
    /// The word of the sharding.
    pub(crate) fn sharding(&self) -> String {
        { Deal::value_variants().iter() }
            .find(|deal| deal.sharding() == self.sharding)
            .map_or_else(|| "documents".to_owned(), word)
    }

    /// The rows of each device.
    ///
    /// # Errors
    /// As [`RowMap::new`].
    pub(crate) fn map(&self, devices: usize) -> Result<RowMap, Failure> {
        Ok(RowMap::new(&self.sharding, self.len, devices)?)
    }

    /// The rows of a group's devices.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub(crate) fn shards<'a>(&self, group: &'a Group) -> Result<Shards<'a>, Failure> {
        let shards = group.shards(&self.sharding, self.len)?;
        Ok(shards.scheme(self.by.scheme()))
    }
}

impl SeveralArgs {
    /// Opens the devices, if there are several.
    ///
    /// # Errors
    /// [`Failure::Device`] with the argument; [`Failure::Input`] for devices that the engine does not take.
    pub(crate) fn open(&self) -> Result<Option<Team>, Failure> {
        let Some(devices) = &self.devices else {
            return Ok(None);
        };
        let refused = |why: &str| Err(Failure::Input(format!("--devices {devices}: {why}")));
        let is_again = |at: usize| devices.0[..at].contains(&devices.0[at]);
        match self.engine {
            Some(_) if devices.0[0] == Device::Cpu => refused("--engine is for GPUs"),
            Some(Engine::Nccl) if (0..devices.0.len()).any(is_again) => {
                refused("--engine nccl takes each GPU once")
            }
            engine => devices.open(engine).map(Some),
        }
    }

    /// Checks that options for several devices come with `--devices`: clap's `requires` lets them pass beside what conflicts with it.
    ///
    /// # Errors
    /// [`Failure::Input`] that names the option.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.check_option("engine", self.engine.is_some())?;
        self.check_option("scheme", self.scheme.is_some())?;
        self.check_option("sharding", self.sharding.is_some())
    }

    /// As [`check`](Self::check), for one option.
    pub(crate) fn check_option(&self, name: &str, is_given: bool) -> Result<(), Failure> {
        match is_given && self.devices.is_none() {
            true => Err(Failure::Input(format!(
                "--{name} is for several devices: it needs --devices"
            ))),
            false => Ok(()),
        }
    }

    /// The word of what moves the bytes.
    pub(crate) fn engine(&self) -> Option<&'static str> {
        let devices = self.devices.as_ref()?;
        Some(match (devices.0[0], self.engine) {
            (Device::Cpu, _) => "threads",
            (_, Some(Engine::Nccl)) => "nccl",
            _ => "peers",
        })
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> usize {
        self.devices.as_ref().map_or(0, |devices| devices.0.len())
    }

    /// Why the scheme `heads` does not take a problem, if it does not.
    fn why_not(&self, by: By, case: &Case) -> Option<String> {
        let heads = case.heads.query;
        let ranks = match by {
            By::Gather => return None,
            By::Heads => self.count(),
            By::Hybrid if !self.count().is_multiple_of(HOSTS) => {
                return Some(format!("{} devices are not two halves", self.count()));
            }
            By::Hybrid => self.count() / HOSTS,
        };
        let few = || format!("{ranks} devices need at least as many query heads, not {heads}");
        match has_numbers(case) {
            true => Some("it takes no options with a number for each head".to_owned()),
            false => (heads < ranks).then(few),
        }
    }

    /// The predicted time of a problem by a scheme, or why there is none.
    pub(crate) fn expected(
        &self,
        by: By,
        case: &Case,
        map: &RowMap,
        one_us: f64,
    ) -> Result<Expected, Failure> {
        if let Some(why) = self.why_not(by, case) {
            return Err(Failure::Input(why));
        }
        expected(by, case, map, one_us)
    }

    /// Deals a problem out.
    ///
    /// # Errors
    /// [`Failure::Input`] for what one device computes only.
    pub(crate) fn deal(&self, case: &Case) -> Result<Dealt, Failure> {
        let problem = cases::without_seed(case);
        let refused = |rule: &str| Failure::Input(format!("--devices: `{problem}`: {rule}"));
        if let Some(word) = for_one_device(case) {
            return Err(refused(&format!("`{word}` is for one device")));
        }
        if let Some(by) = self.scheme
            && let Some(why) = self.why_not(by, case)
        {
            return Err(refused(&format!("--scheme {}: {why}", word(&by))));
        }
        let lengths = case.used_lengths();
        if lengths.iter().any(|(queries, keys)| queries != keys) {
            return Err(refused("several devices need as many keys as queries"));
        }
        let mut offsets = vec![0];
        for (rows, _) in &lengths {
            offsets.push(offsets[offsets.len() - 1] + rows);
        }
        let len = offsets[lengths.len()];
        let several = lengths.len() != 1 || matches!(case.lengths, Lengths::Packed(_));
        let sharding = match (several, self.sharding) {
            (true, None) => Sharding::Documents(offsets),
            (true, Some(_)) => {
                return Err(refused("--sharding is for one sequence that is not packed"));
            }
            (false, Some(given)) => given.sharding(),
            (false, None) if case.scoring.mask.hides_nothing() => Sharding::Contiguous,
            (false, None) => Sharding::Zigzag,
        };
        Ok(Dealt {
            by: self.scheme.unwrap_or(By::Gather),
            sharding,
            len,
        })
    }

    /// Looks at a step of decoding, whose keys are dealt out by pages.
    ///
    /// # Errors
    /// [`Failure::Input`] for what one device computes only, and for ways to deal out rows.
    pub(crate) fn check_decoding(&self, case: &Case) -> Result<(), Failure> {
        let dealt = self.scheme.is_some() || self.sharding.is_some();
        let rule = "--scheme and --sharding are not for one query for each sequence";
        match decoding::why_not(case).or(dealt.then(|| rule.to_owned())) {
            None => Ok(()),
            Some(rule) => {
                let problem = cases::without_seed(case);
                Err(Failure::Input(format!("--devices: `{problem}`: {rule}")))
            }
        }
    }

    /// All ways to deal a problem out that the arguments leave open.
    ///
    /// # Errors
    /// As [`deal`](Self::deal).
    pub(crate) fn ways(&self, case: &Case) -> Result<Vec<Dealt>, Failure> {
        let dealt = self.deal(case)?;
        let schemes = match self.scheme {
            Some(given) => vec![given],
            None => { By::ALL.into_iter() }
                .filter(|by| self.why_not(*by, case).is_none())
                .collect(),
        };
        let shardings = match (&dealt.sharding, self.sharding) {
            (Sharding::Documents(_), _) | (_, Some(_)) => vec![dealt.sharding],
            _ => { Deal::value_variants().iter() }
                .map(|deal| deal.sharding())
                .collect(),
        };
        let way = |by| {
            { shardings.iter() }.map(move |sharding| Dealt {
                by,
                sharding: sharding.clone(),
                len: dealt.len,
            })
        };
        Ok(schemes.into_iter().flat_map(way).collect())
    }

    /// The nearest problem that these devices take, of about as much work.
    pub(crate) fn fitted(&self, case: &Case) -> Case {
        let rows = |(queries, keys): (usize, usize)| {
            let rows = queries.saturating_mul(keys).isqrt();
            (rows, rows)
        };
        let mut scoring = case.scoring.without("dropout").without("blocks");
        let tensors = Operand::of_scores().filter(|operand| operand.kind() == Kind::Scores);
        for word in tensors.filter_map(Operand::word) {
            scoring = scoring.without(word);
        }
        // A part of a sequence has the right distances under such a mask only.
        let mask = scoring.mask;
        let ends_at_own_key = mask.right == Some(0) && mask.diagonal.offset(9, 9) == 0;
        if !ends_at_own_key || scoring.alibi == Some(AlibiShape::PerBatchHead) {
            scoring = scoring.without("alibi");
        }
        let mut heads = case.heads;
        if self.scheme.is_some_and(|by| by != By::Gather) {
            let numbers = Operand::of_scores().filter_map(Operand::word);
            scoring = numbers.fold(scoring, |all, word| all.without(word));
            heads.query = heads
                .query
                .max(heads.key_value * self.count().div_ceil(heads.key_value));
        }
        Case {
            lengths: match &case.lengths {
                Lengths::Packed(lengths) => {
                    Lengths::Packed(lengths.iter().copied().map(rows).collect())
                }
                Lengths::Dense { batch, query, key } => {
                    let (query, key) = rows((*query, *key));
                    Lengths::Dense {
                        batch: *batch,
                        query,
                        key,
                    }
                }
                other => other.clone(),
            },
            heads,
            element: case.element,
            scoring,
            // No kernel for f32 cuts keys at fixed places.
            splits: match case.element {
                ElementType::F32 => Splits::Even,
                _ => case.splits,
            },
            backward: case.backward,
            seed: case.seed,
            ..Case::new(0, 0, case.heads)
        }
    }

    /// Deals a random problem out, where no argument says how, as its seed has it.
    ///
    /// # Errors
    /// As [`deal`](Self::deal).
    pub(crate) fn draw(&self, case: &Case) -> Result<Dealt, Failure> {
        let mut dealt = self.deal(case)?;
        let drawn = [By::Gather, By::Heads, By::Gather, By::Hybrid][(case.seed % 4) as usize];
        if self.scheme.is_none() && self.why_not(drawn, case).is_none() {
            dealt.by = drawn;
        }
        if self.sharding.is_none() && !matches!(dealt.sharding, Sharding::Documents(_)) {
            let deals = Deal::value_variants();
            dealt.sharding = deals[(case.seed / 2) as usize % deals.len()].sharding();
        }
        Ok(dealt)
    }
}

/// The predicted time of a problem by a scheme that takes it.
pub(crate) fn expected(
    by: By,
    case: &Case,
    map: &RowMap,
    one_us: f64,
) -> Result<Expected, Failure> {
    let options = (case.scoring.mask, has_numbers(case));
    let of = (case.element.size(), case.backward);
    let expected = Expected::new(by.scheme(), map, options, case.heads, of, one_us);
    Ok(expected?)
}

/// The word of a problem that several devices do not take, if there is one.
pub(crate) fn for_one_device(case: &Case) -> Option<&'static str> {
    let tensor = { Operand::of_scores() }
        .find(|operand| operand.kind() == Kind::Scores && case.scoring.has(*operand));
    [
        (case.pages.is_some(), "pages"),
        (case.used != Used::All, "lengths"),
        (case.quantized.is_some(), "cache"),
        (case.layout != LayoutKind::Bshd, "layout"),
        (case.unaligned, "unaligned"),
        (case.device_lengths, "device-lengths"),
        (case.multiprocessors.is_some(), "sms"),
        (case.scoring.blocks.is_some(), "blocks"),
        (
            case.scoring.alibi == Some(AlibiShape::PerBatchHead),
            "alibi=batch",
        ),
    ]
    .into_iter()
    .find_map(|(is_set, word)| is_set.then_some(word))
    .or_else(|| tensor.and_then(Operand::word))
}

/// Returns true if an option has a number for each head.
fn has_numbers(case: &Case) -> bool {
    Operand::of_scores().any(|operand| case.scoring.has(operand))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Rank { rank, source } => match Failure::from(source) {
                Failure::Device(why) => Failure::Device(format!("rank {rank}: {why}")),
                Failure::Input(why) => Failure::Input(format!("rank {rank}: {why}")),
                other => other,
            },
            Error::Argument { .. } | Error::Sharding(_) | Error::MixedBackends { .. } => {
                Failure::Input(error.to_string())
            }
            _ => Failure::Device(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(devices: &str, scheme: Option<By>) -> SeveralArgs {
        SeveralArgs {
            devices: Some(devices.parse().unwrap()),
            engine: None,
            scheme,
            sharding: None,
        }
    }

    #[test]
    fn lists_of_devices() {
        for text in ["0,1", "cpu,cpu", "2,0,2"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:1,0".parse::<Devices>().unwrap().to_string(), "1,0");
        for (text, expected) in [
            ("0", "at least two"),
            ("", "`` is not a device"),
            ("0,", "`` is not a device"),
            ("cpu,0", "all GPUs, or all the CPU"),
            ("auto,auto", "`auto` is not a device"),
            ("0,-1", "`-1` is not a device"),
        ] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn every_random_problem_is_dealt_out_after_it_is_fitted() {
        let args = several("cpu,cpu,cpu", None);
        let (mut by_heads, mut words) = (0, std::collections::BTreeSet::new());
        for seed in 0..400 {
            let case = args.fitted(&Case::random(seed, 300));
            assert_eq!(args.fitted(&case), case);
            let dealt = args.draw(&case).unwrap();
            let by_heads_only = several("cpu,cpu,cpu", Some(By::Heads));
            let case = by_heads_only.fitted(&case);
            assert_eq!(by_heads_only.draw(&case).unwrap().by, By::Heads);
            by_heads += u32::from(dealt.by == By::Heads);
            words.insert(dealt.sharding());
        }
        assert!(by_heads > 20, "{by_heads}");
        let of_two_halves = several("cpu,cpu", None);
        let drawn = (0..40).map(|seed| {
            let case = of_two_halves.fitted(&Case::random(seed, 300));
            of_two_halves.draw(&case).unwrap().by
        });
        assert!(drawn.filter(|by| *by == By::Hybrid).count() > 2);
        assert_eq!(words.len(), 4);
    }

    #[test]
    fn words_can_be_given_again() {
        for by in By::value_variants() {
            assert_eq!(By::from_str(&word(by), false), Ok(*by));
        }
    }

    #[test]
    fn words_for_one_device_are_named() {
        let args = SeveralArgs::default();
        let tensors = Operand::of_scores().filter(|operand| operand.kind() == Kind::Scores);
        let tensors = tensors.filter_map(Operand::word).map(|word| (word, word));
        let words = [
            ("pages=16", "pages"),
            ("alibi=batch", "alibi=batch"),
            ("lengths=ragged", "lengths"),
        ];
        let words = words.into_iter().chain(tensors);
        let rules = words.map(|(word, name)| (word, format!("`{name}` is for one device")));
        let of_keys = "several devices need as many keys as queries".to_owned();
        for (word, rule) in rules.chain([("k8", of_keys)]) {
            let problem = format!("q9 {word}");
            let error = args
                .deal(&problem.parse().unwrap())
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("--devices: `b1 q9") && error.ends_with(&rule),
                "{error}"
            );
        }
    }
}
