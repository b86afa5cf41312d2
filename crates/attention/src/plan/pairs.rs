//! The meaning of tile numbers: for kernels whose CTAs work in pairs, two tiles that see the same keys; for others
//! rows of one head, or of all heads that share a key/value head.

use warptile_kernels::abi::MAX_BOX_HEADS;
use warptile_kernels::{Image, Schedule};

use crate::plan::split_tiles::{packs_rows, splits_tiles};
use crate::spec::{Heads, Mask, Problem};

/// The work that CTAs take by one number: rows of some heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// Query heads, key/value heads or pairs of heads: what numbers tell apart.
    pub(crate) heads: usize,
    /// Rows of a number.
    pub(crate) rows: u64,
    /// Rows that each query is.
    pub(crate) rows_of_query: u64,
    /// CTAs that compute a number together.
    pub(crate) ctas: u64,
}

impl Numbered {
    /// The numbering of an image's tiles for a problem with these heads. The kernels go by the same rules
    /// (kernels/forward/wgmma_pair.cuh).
    pub(crate) fn of(image: &Image, heads: Heads) -> Self {
        let group = heads.group_size();
        let single = Numbered {
            heads: heads.query,
            rows: u64::from(image.tiling.block_m),
            rows_of_query: 1,
            ctas: u64::from(image.schedule.ctas_of_cluster()),
        };
        match image.schedule {
            schedule if schedule.has_group_tiles() => Numbered {
                heads: heads.key_value,
                rows_of_query: group as u64,
                ..single
            },
            Schedule::Pairs if has_pairs_of_heads(group) => Numbered {
                heads: heads.query / 2,
                ..single
            },
            Schedule::Pairs => Numbered {
                rows: 2 * single.rows,
                ..single
            },
            _ => single,
        }
    }

    /// How many there are in all, if every sequence were a typical one.
    pub(crate) fn typical(&self, problem: &Problem) -> f64 {
        let rows = problem.typical_lengths().0 as u64 * self.rows_of_query;
        problem.typical_sequences() * rows.div_ceil(self.rows) as f64 * self.heads as f64
    }
}

/// Returns true if the two tiles of a pair are those of two heads, else two of one head.
const fn has_pairs_of_heads(group_size: usize) -> bool {
    group_size.is_multiple_of(2)
}

/// Returns true if both tiles of a pair see the same keys.
pub(super) fn pairs_share_keys(group_size: usize, mask: Mask) -> bool {
    has_pairs_of_heads(group_size) || mask.hides_nothing()
}

/// Returns true if tiles can have the rows of all heads of a group: in boxes a power of two. Prompts with 8 heads a group have not been
/// measured.
pub(super) fn groups_fit_boxes(group_size: usize, image: &Image) -> bool {
    matches!(group_size, 2 | 4)
        || group_size == MAX_BOX_HEADS && splits_tiles(image)
        || packs_rows(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::considered::Reason;
    use crate::plan::{Choice, DeviceProfile, Planner, Rates, Step};
    use crate::spec::{Call, ElementType, Layout, Scoring};

    /// A plain image, as if it were one of another schedule: what is planned follows from that alone.
    fn image(kernel: &str, schedule: Schedule) -> &'static Image {
        let plain = { warptile_kernels::catalog().iter() }
            .filter(|image| image.kernel == kernel && image.element == ElementType::Bf16)
            .filter(|image| image.schedule == Schedule::Persistent)
            .min_by_key(|image| image.features.iter().count());
        let mut image = plain.unwrap().clone();
        image.name = format!("{kernel}_{schedule:?}").leak();
        image.schedule = schedule;
        Box::leak(Box::new(image))
    }

    fn call(batch: usize, [heads, kv_heads]: [usize; 2], [q, k]: [usize; 2], mask: Mask) -> Call {
        let q = Layout::bshd([batch, q, heads, 128]);
        let k = Layout::bshd([batch, k, kv_heads, 128]);
        Call::builder(&q, &k, &k, ElementType::Bf16)
            .scoring(Scoring::new().mask(mask))
            .build()
            .unwrap()
    }

    const KERNEL: &str = "wgmma_d128_128x128_w12_s2";

    #[test]
    fn a_number_of_a_pair_is_two_heads_or_two_tiles() {
        let image = image(KERNEL, Schedule::Pairs);
        let shape = |multiprocessors, call: &Call| {
            let shape = Step::of(image, multiprocessors).shape(call).unwrap();
            (
                shape.tiles,
                shape.query_tiles,
                shape.grid,
                shape.draws_tiles,
            )
        };
        let causal = Mask::causal();
        // 4 tiles of each of 16 pairs of heads.
        let grouped = call(1, [32, 8], [512, 8192], causal);
        assert_eq!(shape(132, &grouped), (64, 4, 128, false));
        assert_eq!(shape(100, &grouped), (64, 4, 100, true));
        // Two of 3 tiles are a number, and the third is one with rows that do not exist.
        let single = call(2, [3, 3], [300, 8192], Mask::none());
        assert_eq!(shape(132, &single), (12, 2, 24, false));
        // A cluster has two CTAs even where the plan is for one multiprocessor, and an odd one stays idle.
        assert_eq!(shape(1, &single), (12, 2, 2, true));
        assert_eq!(shape(7, &single), (12, 2, 6, true));
        assert_eq!(shape(0, &single).2, 2);
        assert_eq!(shape(132, &call(1, [4, 4], [0, 16], Mask::none())).2, 0);
        // A device that holds fewer clusters than its multiprocessors could.
        let few = Step {
            clustered_ctas: Some(120),
            ..Step::of(image, 132)
        };
        let shape = few.shape(&grouped).unwrap();
        assert_eq!((shape.grid, shape.draws_tiles), (120, true));
    }

    #[test]
    fn packed_pairs_are_counted_from_the_shapes_alone() {
        let image = image(KERNEL, Schedule::Pairs);
        let tiles = |heads: usize| {
            let q = Layout::packed(1000, heads, 128);
            let k = Layout::packed(1000, 2, 128);
            let call = Call::builder(&q, &k, &k, ElementType::Bf16)
                .packed(&[0, 1, 2, 1000], &[0, 1, 2, 1000])
                .build()
                .unwrap();
            Step::of(image, 132).shape(&call).unwrap().tiles
        };
        // 1000 / 256 + 3 numbers for each of 2 heads, 1000 / 128 + 3 for each of 2 pairs of heads.
        assert_eq!((tiles(2), tiles(4)), (2 * 6, 2 * 10));
    }

    #[test]
    fn interleaved_pairs_are_those_of_all_heads() {
        let image = image(KERNEL, Schedule::Pairs);
        let at_once = |call: &Call| Step::of(image, 8).shape(call).unwrap().heads_at_once;
        // 2 MiB of keys and values a key/value head: 16 of them, each with two pairs; in even groups.
        assert_eq!(
            at_once(&call(1, [128, 32], [4096, 4096], Mask::causal())),
            32
        );
        assert_eq!(at_once(&call(1, [32, 8], [4096, 4096], Mask::causal())), 16);
        assert_eq!(at_once(&call(1, [8, 8], [4096, 4096], Mask::none())), 1);
    }

    #[test]
    fn rows_of_a_group_are_those_of_all_its_heads() {
        let image = image("wgmma_d128_192x64_w16_s4", Schedule::PersistentGroups);
        // 4 * 2048 / 192 tiles of each of 8 heads.
        let grouped = call(1, [32, 8], [2048, 2048], Mask::causal());
        let shape = Step::of(image, 132).shape(&grouped).unwrap();
        assert_eq!((shape.tiles, shape.query_tiles, shape.grid), (344, 43, 132));
        assert!(shape.draws_tiles && shape.heads_at_once == 8, "{shape:?}");
    }

    /// The decision of a planner that has only the image of one schedule.
    fn only(schedule: Schedule, call: &Call) -> Option<Reason> {
        let h200 = DeviceProfile::h200();
        let images = [image(KERNEL, schedule)];
        let planner = Planner::new(&h200).images(images.into_iter());
        let error = planner.plan(call.problem(), &Choice::Best).err()?;
        let crate::error::Error::NoKernel { mut considered, .. } = error else {
            panic!("{error}")
        };
        considered.pop().map(|one| one.reason)
    }

    #[test]
    fn each_schedule_takes_what_it_can() {
        let (none, causal) = (Mask::none(), Mask::causal());
        for (heads, mask, pairs, groups) in [
            ([8, 2], causal, true, true),
            ([4, 2], causal, true, true),
            ([8, 2], none, true, true),
            ([6, 2], causal, false, false),
            ([6, 2], none, true, false),
            ([2, 2], causal, false, false),
            ([2, 2], none, true, false),
            ([16, 2], causal, true, false),
            ([32, 2], causal, true, false),
            ([12, 2], causal, true, false),
        ] {
            let call = call(2, heads, [300, 500], mask);
            let expected = |fits: bool, reason| (!fits).then_some(reason);
            assert_eq!(
                only(Schedule::Pairs, &call),
                expected(pairs, Reason::Pairs),
                "{call}"
            );
            let groups = expected(groups, Reason::Groups);
            assert_eq!(only(Schedule::PersistentGroups, &call), groups, "{call}");
        }
    }

    /// The estimate decides among a kernel's images, if the table of rates knows them all; a variant that it doesn't know is not
    /// taken.
    #[test]
    fn a_variant_is_chosen_by_its_rates() {
        let h200 = DeviceProfile::h200();
        let images = [
            image(KERNEL, Schedule::Persistent),
            image(KERNEL, Schedule::Pairs),
            image(KERNEL, Schedule::PersistentGroups),
        ];
        let chosen = |lines: &str, heads: [usize; 2]| {
            let table = include_str!("../../rates/nvidia-h200.txt");
            let table: String = { table.lines() }
                .filter(|line| !line.starts_with("pairs ") && !line.starts_with("groups "))
                .map(|line| format!("{line}\n"))
                .collect();
            let rates: Rates = format!("{table}{lines}").parse().unwrap();
            let planner = Planner::new(&h200).rates(&rates).images(images.into_iter());
            let problem = call(1, heads, [2048, 2048], Mask::causal()).problem();
            let plan = planner.plan(problem, &Choice::Best).unwrap();
            plan.image().unwrap().schedule
        };
        let faster = format!("pairs {KERNEL} 1.1");
        let slower = format!("pairs {KERNEL} 0.9");
        let grouped = format!("groups {KERNEL} 1");
        assert_eq!(chosen("", [32, 8]), Schedule::Persistent);
        assert_eq!(chosen(&faster, [32, 8]), Schedule::Pairs);
        assert_eq!(chosen(&slower, [32, 8]), Schedule::Persistent);
        // The two heads of a pair do not share keys.
        assert_eq!(chosen(&faster, [8, 8]), Schedule::Persistent);
        // As fast a block, but fewer of them: a tile's queries are a quarter.
        assert_eq!(chosen(&grouped, [32, 8]), Schedule::PersistentGroups);
        assert_eq!(chosen(&grouped, [24, 8]), Schedule::Persistent);
    }
}
