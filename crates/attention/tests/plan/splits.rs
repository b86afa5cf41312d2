//! Keys that are cut at fixed places, and the memory that parts take.

use warptile::plan::{Choice, DeviceProfile, Plan, Reason};
use warptile::spec::{Features, Problem};
use warptile::{Error, Splits};
use warptile_check::Case;
use warptile_kernels::{Schedule, catalog};

use crate::{CONSUMER_SHARED_BYTES, case, device, named};

/// The problem of a line of words that cuts keys every 512.
fn every_512(text: &str) -> Problem {
    case(&format!("{text} splits=512")).call().problem()
}

/// A token, a prompt, a batch, packed, in pages, with lengths on the device: everything that element type, head size and options leave open.
const ANY_BATCH: [&str; 9] = [
    "b1 q1 k1",
    "b1 q1 k100000",
    "b64 q1 k8192",
    "b4 q5 k3000",
    "b1 q8192 k8192",
    "packed=300x300,1x4000,0x7",
    "b64 q1 k4096 pages=16 lengths=ragged",
    "b3 q70 k900 pages=7 lengths=900,1,200",
    "packed=300x900,1x4000 pages=256 device-lengths",
];

#[test]
fn with_splits_one_image_computes_every_batch() {
    let devices = [
        DeviceProfile::h200(),
        device(8, 0, 166_912),
        device(12, 0, CONSUMER_SHARED_BYTES),
    ];
    for device in &devices {
        for head_dim in [8, 64, 72, 128, 192, 256] {
            for words in [
                "f16",
                "bf16",
                "f16 mask=causal",
                "f16 mask=window,127,0 sinks",
                "bf16 softcap=30 alibi=head",
                "f16 scale=-1",
            ] {
                let image = |batch: &str, heads: &str| {
                    let problem = every_512(&format!("{batch} {heads} d{head_dim} {words}"));
                    let plan = Plan::gpu(problem, device, &Choice::Best).ok();
                    plan.map(|plan| plan.image().unwrap().name)
                };
                let first = image(ANY_BATCH[0], "h32/8");
                if device.major == 9 {
                    assert!(first.is_some(), "d{head_dim} {words}");
                }
                for batch in ANY_BATCH {
                    for heads in ["h1", "h32/8", "h64/1"] {
                        let found = image(batch, heads);
                        assert_eq!(found, first, "{batch} {heads} d{head_dim} {words}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_cut_keys_at_fixed_places_says_so() {
    let h200 = DeviceProfile::h200();
    let problem = every_512("b1 q1 k8192 h32/8 d128 f16");
    let plan = Plan::gpu(problem, &h200, &Choice::Best).unwrap();
    assert_eq!(plan.image().unwrap().schedule, Schedule::SharedKeys);
    assert!(plan.explain().contains("splits=512"), "{plan}");
    let not = |kernel: &str| {
        let mut others = plan.considered().iter();
        others.find(|one| one.kernel == kernel).unwrap()
    };
    assert_eq!(not("wmma_d128_48x32_w8_s2").reason, Reason::Splits);
    let error = Plan::gpu(problem, &h200, &named("wmma_d128_48x32_w8_s2"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot cut keys at fixed places"), "{error}");
    for words in [
        "f16 bias",
        "f16 keymask",
        "f16 softcap=30 sinks bias keymask",
    ] {
        let problem = every_512(&format!("b1 q1 k8192 h32/8 d128 {words}"));
        assert!(Plan::gpu(problem, &h200, &Choice::Best).is_ok(), "{words}");
    }
    for words in [
        "f32",
        "f16 unaligned",
        "f16 unaligned bias",
        "f16 dropout=0.1",
        "f16 blocks=64x64",
        "f16 bias=f32",
    ] {
        let problem = every_512(&format!("b1 q1 k8192 h32/8 d128 {words}"));
        let error = Plan::gpu(problem, &h200, &Choice::Best).unwrap_err();
        assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    }
    assert_ne!(problem, case("b1 q1 k8192 h32/8 d128 f16").call().problem());
}

#[test]
fn with_splits_the_predicted_time_is_that_of_the_problem() {
    let plan = |batch: usize| {
        let problem = every_512(&format!("b{batch} q1 k8192 h32/8 d128 bf16"));
        Plan::gpu(problem, &DeviceProfile::h200(), &Choice::Best).unwrap()
    };
    let [one, many] = [1, 256].map(plan);
    assert_eq!(one.kernel_name(), many.kernel_name());
    let times = many.estimate_us() / one.estimate_us();
    assert!((10.0..256.0).contains(&times), "{times}");
}

/// No other image takes what is too much for the one that takes all.
#[test]
fn with_splits_too_many_units_are_an_error() {
    use warptile::spec::Call;
    use warptile::{ElementType, Layout};
    let q = Layout::new([1 << 16, 1 << 13, 1, 8], [0, 0, 0, 1]);
    let out = Layout::new([1 << 16, 1 << 13, 1, 8], [1 << 16, 8, 8, 1]);
    let k = Layout::new([1 << 16, 1 << 16, 1, 8], [0, 0, 0, 1]);
    let call = Call::builder(&q, &k, &k, ElementType::F16)
        .out(out)
        .splits(Splits::EveryKeys(256))
        .build()
        .unwrap();
    let error = Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("needs 8589934592 tiles"), "{error}");
}

/// Bytes for the parts of a call, by looking at what each query of each sequence sees.
fn bytes_of_parts(case: &Case, plan: &Plan, keys: usize) -> usize {
    let (call, tiling) = (case.call(), plan.image().unwrap().tiling);
    let (block_m, head_dim) = (tiling.block_m as usize, tiling.head_dim as usize);
    let mut units = 0;
    for sequence in call.sequences() {
        let seen = (0..sequence.q_len)
            .map(|row| call.mask().visible(row, sequence.q_len, sequence.k_len))
            .filter(|seen| !seen.is_empty());
        let touched = seen.fold(None, |all: Option<(usize, usize)>, seen| {
            let here = (seen.start / keys, (seen.end - 1) / keys);
            Some(all.map_or(here, |all| (all.0.min(here.0), all.1.max(here.1))))
        });
        let splits = touched.map_or(1, |(first, last)| last - first + 1);
        let tiles = (sequence.q_len * call.heads().group_size()).div_ceil(block_m);
        units += tiles * call.heads().key_value * splits;
    }
    // The counter, and 1,024 semaphores.
    256 + 4 * 1024 + units * block_m * (head_dim + 2) * 4
}

#[test]
fn the_scratch_holds_the_parts_of_every_call() {
    fn holds(seed: u64) -> quickcheck::TestResult {
        let mut case = Case::random(seed, 3000).with_splits();
        case.unaligned = false;
        // No image has both.
        case.scoring.operands = case.scoring.operands - Features::BIAS_F32;
        if case.element == warptile::ElementType::F32 {
            case.element = warptile::ElementType::F16;
        }
        let Splits::EveryKeys(keys) = case.splits else {
            return quickcheck::TestResult::error("no splits");
        };
        for call in [case.call(), case.call_on_gpu().unwrap()] {
            let plan = Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best).unwrap();
            let shape = plan.steps()[0].shape(&call).unwrap();
            let needed = bytes_of_parts(&case, &plan, keys as usize);
            let given = (shape.workspace_bytes, plan.scratch().bytes);
            if needed > given.0 || given.0 > given.1 {
                return quickcheck::TestResult::error(format!("{case}: {needed}, {given:?}"));
            }
            let even = matches!(case.lengths, warptile_check::Lengths::Dense { .. })
                && case.used == warptile_check::Used::All;
            let masked = case.scoring.mask.left.is_some();
            let rows = call.batch() * call.query_len() != 0;
            if even && !masked && rows && case.pages.is_none() && needed != given.0 {
                return quickcheck::TestResult::error(format!("{case}: {needed} is not {given:?}"));
            }
        }
        quickcheck::TestResult::passed()
    }
    quickcheck::QuickCheck::new()
        .tests(400)
        .quickcheck(holds as fn(u64) -> quickcheck::TestResult);
}

#[test]
fn even_splits_need_no_more_than_every_stream_has() {
    // 256 CTAs with two parts of 64 rows and head size 128.
    let most = 256 + 4 * 1024 + 2 * 256 * 64 * (128 + 2) * 4;
    let mut plans = 0;
    for image in catalog()
        .iter()
        .filter(|image| image.role == warptile_kernels::Role::Forward)
        // Their parts are larger; a session is made for them too, and a stream's workspace grows.
        .filter(|image| !image.name.contains("_serving_"))
    {
        let head_dim = image.tiling.head_dim;
        let problem = case(&format!("b64 q1 k8192 h32/8 d{head_dim} {}", image.element));
        let mut profile = device(9, 0, 232_448);
        profile.multiprocessors = 300;
        if let Ok(plan) = Plan::gpu(
            problem.call().problem(),
            &profile,
            &Choice::Image(image.name.to_owned()),
        ) {
            assert!(plan.scratch().bytes <= most, "{}", image.name);
            plans += 1;
        }
    }
    assert!(plans > 0);
}

/// No image takes more keys at once than lie between two cuts.
#[test]
fn every_image_that_shares_keys_can_cut_there() {
    use warptile_kernels::{Schedule, catalog};
    let mut images = 0;
    for image in catalog() {
        if image.schedule == Schedule::SharedKeys {
            assert!(image.tiling.block_n.is_power_of_two(), "{}", image.name);
            assert!(
                image.tiling.block_n <= warptile::Splits::MIN_KEYS,
                "{}",
                image.name
            );
            images += 1;
        }
    }
    assert!(images > 0);
}
