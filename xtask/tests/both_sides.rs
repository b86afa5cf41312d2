//! Numbers and rules that kernels and the host have, each in text of its own: both say the same.

use warptile_spec::Prepass;
use xtask::files;

/// The text of a file of the repository, without line breaks and indentation.
fn text(path: &str) -> String {
    let text = files::read_text(&files::repository_root().join(path)).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands between two pieces of text in a file.
#[track_caller]
fn between(path: &str, before: &str, after: &str) -> String {
    let text = text(path);
    let mut found = text.match_indices(before);
    let (at, _) = (found.next()).unwrap_or_else(|| panic!("{path} has no `{before}`"));
    assert!(found.next().is_none(), "{path} has several `{before}`");
    let rest = &text[at + before.len()..];
    let end = rest
        .find(after)
        .unwrap_or_else(|| panic!("{path}: {before}"));
    rest[..end].to_owned()
}

#[test]
fn words_of_joint_sums_begin_behind_the_semaphores() {
    let split_tiles = "crates/attention/src/plan/split_tiles.rs";
    let semaphores = between(split_tiles, "const SEMAPHORES: usize = ", ";");
    let words_at = between("kernels/forward/wgmma_joint_sum.cuh", "WORDS_AT = ", ";");
    let [semaphores, words_at] = [semaphores, words_at].map(|x| x.parse::<usize>().unwrap());
    assert_eq!(semaphores, 2 * words_at);
    let of_packed_rows = between(split_tiles, "SEMAPHORES / if packs_rows(image) { ", " }");
    assert_eq!(of_packed_rows, "2");
}

#[test]
fn the_least_factor_of_scores_is_the_same() {
    let of_host = between(
        "crates/spec/src/scoring.rs",
        "const LEAST_SCALE: f32 = ",
        ";",
    );
    let path = "kernels/forward/wgmma_softmax.cuh";
    let of_kernels = between(path, "params.scoring.scale) * LOG2_E, ", "f)");
    assert_eq!(of_kernels, of_host);
}

#[test]
fn weights_may_grow_as_far_in_the_emulation() {
    for number in ["MAX_GROWTH = ", "MAX_GROWTH<__nv_bfloat16> = "] {
        let of_kernels = between("kernels/base/element.cuh", number, ";");
        let of_emulation = between("kernels/emulation/base/element.cuh", number, ";");
        assert_eq!(of_kernels, of_emulation, "{number}");
    }
}

#[test]
fn the_same_images_pack_rows() {
    let of_kernels = between("kernels/forward/wgmma_layout.cuh", "PACKS_ROWS = ", " };");
    assert_eq!(
        of_kernels,
        "VARIANT_ == Variant::SERVING_GROUPS && !(BLOCK_M_ == 64 && HEAD_DIM_ == 128)"
    );
    let of_host = between(
        "crates/attention/src/plan/split_tiles.rs",
        "fn packs_rows(image: &Image) -> bool { ",
        " }",
    );
    assert_eq!(
        of_host,
        "let in_boxes = image.tiling.block_m == 64 && image.tiling.head_dim == 128; \
         splits_tiles(image) && image.schedule == Schedule::PersistentGroups && !in_boxes"
    );
}

#[test]
fn boxes_of_pages_have_the_same_rows() {
    let of_kernels = between(
        "kernels/forward/wgmma_blocks.cuh",
        "box_rows(min(",
        ")), boxes(",
    );
    assert_eq!(of_kernels, "pages.rows & -pages.rows, BLOCK_N & -BLOCK_N");
    let of_host = between(
        "crates/attention/src/gpu/block.rs",
        "PageLoader::box_rows` in kernels/forward/wgmma_blocks.cuh. Some(pages) => ",
        ", None",
    );
    assert_eq!(
        of_host,
        "power_of_two_in(pages.rows() as u32).min(power_of_two_in(block_n))"
    );
}

#[test]
fn the_same_rows_pass_no_gradient() {
    for (path, before) in [
        ("kernels/backward/prepass.cuh", "LARGEST_LSE = "),
        (
            "crates/check/gpu/gradients.cuh",
            "constexpr double LARGEST_LSE = ",
        ),
    ] {
        let found: f32 = between(path, before, ";").parse().unwrap();
        assert_eq!(found, Prepass::LARGEST_LSE, "{path}");
    }
}
