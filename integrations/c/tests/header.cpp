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
    if (status != WARPTILE_OK || out != values) {
        std::fprintf(stderr, "from C++: %d %s\n", status, warptile_last_error());
        return 1;
    }
}
