//! The real library, which needs no GPU for these: `WARPTILE_LIBNCCL=.../libnccl.so.2 cargo test -p warptile-nccl-sys -- --ignored`.

use warptile_nccl_sys::{NcclResult, UniqueId, load};

#[test]
#[ignore = "needs NVIDIA's libnccl"]
fn version_ids_and_words() {
    let nccl = load().unwrap();
    println!("NCCL {}", nccl.version());
    let mut ids = [UniqueId([0; 128]); 2];
    for id in &mut ids {
        // SAFETY: `id` outlives the call.
        assert_eq!(unsafe { (nccl.get_unique_id)(id) }, NcclResult::SUCCESS);
    }
    assert_ne!(ids[0], ids[1]);
    assert!(
        nccl.explain(NcclResult::INVALID_ARGUMENT)
            .starts_with("invalid argument")
    );
}
