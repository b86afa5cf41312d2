// The header is C++ as well, and the library works from it.
#include <cstdio>
#include <vector>

#include "warptile.h"

int main() {
    warptile_attention_desc desc = {};
    desc.size = sizeof desc;
    desc.element = WARPTILE_F32;
    desc.q = desc.k = desc.v = warptile_layout{{1, 2, 1, 8}, {}};
    std::vector<float> values(16, 0.5F), out(16);
    warptile_attention *attention = nullptr;
    warptile_attention_memory memory = {};
    memory.size = sizeof memory;
    memory.q = memory.k = memory.v = values.data();
    memory.out = out.data();
    int status = warptile_attention_prepare(WARPTILE_CPU, &desc, &attention);
    if (status == WARPTILE_OK) status = warptile_attention_run(attention, &memory, nullptr);
    warptile_attention_free(attention);

    // Two ranks with a row each, which see their own row only, as a document.
    warptile_sharded_desc dealt = {};
    dealt.size = sizeof dealt;
    dealt.attention = &desc;
    dealt.sharding = WARPTILE_SHARDING_DOCUMENTS;
    const int64_t offsets[] = {0, 1, 2};
    dealt.documents = 2;
    dealt.document_offsets = offsets;
    const int32_t devices[] = {WARPTILE_CPU, WARPTILE_CPU};
    std::vector<float> dealt_out(16);
    warptile_attention_memory ranks[2] = {memory, memory};
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].q = ranks[rank].k = ranks[rank].v = values.data() + 8 * rank;
        ranks[rank].out = dealt_out.data() + 8 * rank;
    }
    warptile_group *group = nullptr;
    warptile_sharded *sharded = nullptr;
    if (status == WARPTILE_OK) status = warptile_group_local(devices, nullptr, 2, &group);
    if (status == WARPTILE_OK) status = warptile_sharded_prepare(group, &dealt, &sharded);
    if (status == WARPTILE_OK) status = warptile_sharded_forward(sharded, ranks, 2, nullptr);
    warptile_sharded_free(sharded);
    warptile_group_free(group);
    if (status != WARPTILE_OK || out != values || dealt_out != values) {
        std::fprintf(stderr, "from C++: %d %s\n", status, warptile_last_error());
        return 1;
    }
}
