// The GPU's path against the stand-in for the driver (crates/fake-cuda), which runs no kernel, but checks what it is asked, counts it, and
// fails on demand. WARPTILE_LIBCUDA names its library.
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../examples/memory.h"

enum { ERROR_OUT_OF_MEMORY = 2, ERROR_ILLEGAL_ADDRESS = 700, ERROR_LAUNCH_FAILED = 719, ERROR_SYSTEM_DRIVER_MISMATCH = 803, RELAXED = 2 };

// Exports of the stand-in.
static void (*fake_set_device_count)(int count);
static void (*fake_fail)(const char *symbol, uint64_t nth, uint32_t code);
static void (*fake_fail_always)(const char *symbols, uint32_t code);
static uint64_t (*fake_calls)(const char *symbol);
static size_t (*fake_launch_count)(void);
static size_t (*fake_violation_count)(void);
static void (*fake_violation)(size_t index, char *text, size_t len);

static void expect(int line, int status, int code, const char *text) {
    const char *last = code == WARPTILE_OK ? "" : warptile_last_error();
    if (status == code && strncmp(last, text, strlen(text)) == 0) return;
    fprintf(stderr, "line %d: status %d, not %d; text \"%s\", not \"%s...\"\n", line, status, code, warptile_last_error(), text);
    exit(1);
}

#define EXPECT(status, code, text) expect(__LINE__, status, code, text)
#define INVALID(status, text) expect(__LINE__, status, WARPTILE_INVALID, text)
#define WORKS(status) expect(__LINE__, status, WARPTILE_OK, "")

static void equal(int line, uint64_t found, uint64_t expected, const char *what) {
    if (found == expected) return;
    fprintf(stderr, "line %d: %s: %llu, not %llu\n", line, what, (unsigned long long)found, (unsigned long long)expected);
    exit(1);
}

#define EQUAL(found, expected, what) equal(__LINE__, found, expected, what)

static void *new_stream(void) {
    void *stream;
    check_cuda(cuda.cuStreamCreateWithPriority(&stream, 1, 0), "cuStreamCreateWithPriority");
    return stream;
}

static void wait_for(void *stream) { check_cuda(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize"); }

// Kernels that have run since the last time, after the stream is done.
static size_t launched(void *stream) {
    static size_t before;
    wait_for(stream);
    size_t all = fake_launch_count(), since = all - before;
    before = all;
    return since;
}

typedef struct {
    warptile_attention_desc desc;
    warptile_attention *attention;
    warptile_attention_memory memory;
} problem;

// A step of decoding whose CTAs share keys, so it needs a workspace.
static problem make(uint32_t unchecked) {
    problem made = {0};
    made.desc.size = sizeof made.desc;
    made.desc.element = WARPTILE_BF16;
    made.desc.q = (warptile_layout){{2, 1, 8, 128}, {0, 0, 0, 0}};
    made.desc.k = made.desc.v = (warptile_layout){{2, 8192, 2, 128}, {0, 0, 0, 0}};
    made.desc.key_lengths = 1;
    made.desc.unchecked = unchecked;
    WORKS(warptile_attention_prepare(0, &made.desc, &made.attention));
    made.memory.size = sizeof made.memory;
    made.memory.q = allocate(2 * 2048);
    made.memory.k = allocate(2 * 2 * 8192 * 256);
    made.memory.v = allocate(2 * 2 * 8192 * 256);
    made.memory.out = allocate(2 * 2048);
    made.memory.key_lengths = (int32_t *)allocate(8);
    made.memory.workspace_bytes = warptile_attention_workspace(made.attention);
    if (made.memory.workspace_bytes == 0) fail("workspace", "this problem is to need one");
    made.memory.workspace = allocate(made.memory.workspace_bytes);
    return made;
}

static void drop(problem *problem) {
    warptile_attention_free(problem->attention);
    release((void *)(uintptr_t)problem->memory.q);
    release((void *)(uintptr_t)problem->memory.k);
    release((void *)(uintptr_t)problem->memory.v);
    release(problem->memory.out);
    release((void *)(uintptr_t)problem->memory.key_lengths);
    release(problem->memory.workspace);
}

static int run(const problem *problem, void *stream) {
    return warptile_attention_run(problem->attention, &problem->memory, stream);
}

static void one_call_of_the_driver(void) {
    problem checked = make(0), unchecked = make(1);
    void *stream = new_stream();
    uint64_t before = fake_calls(NULL);
    WORKS(run(&unchecked, stream));
    EQUAL(fake_calls(NULL) - before, 1, "calls of the driver for an unchecked run");
    EQUAL(launched(stream), 1, "kernels");
    before = fake_calls("cuPointerGetAttribute");
    WORKS(run(&checked, stream));
    EQUAL(fake_calls("cuPointerGetAttribute") - before, 6, "addresses looked at");
    EQUAL(launched(stream), 1, "kernels");
    // The legacy stream, that of each thread, and no current context, which is then none again.
    WORKS(run(&checked, NULL));
    WORKS(run(&checked, (void *)1));
    EQUAL(launched(NULL), 2, "kernels on the default stream");
    void *context, *after;
    check_cuda(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    check_cuda(cuda.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    WORKS(run(&checked, stream));
    check_cuda(cuda.cuCtxGetCurrent(&after), "cuCtxGetCurrent");
    if (after) fail("cuCtxGetCurrent", "a context was left current");
    check_cuda(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    EQUAL(launched(stream), 1, "kernels");
    // Work goes on after its handle is freed.
    WORKS(run(&checked, stream));
    WORKS(run(&unchecked, stream));
    warptile_attention_free(unchecked.attention);
    unchecked.attention = NULL;
    EQUAL(launched(stream), 2, "kernels");
    drop(&checked);
    drop(&unchecked);
    check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

static void wrong_memory(void) {
    problem good = make(0), bad;
    void *stream = new_stream();
    static char on_host[1 << 12];
    void *other_stream, *other_memory, *context;
    // Another device's stream and memory.
    check_cuda(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    open_device(1);
    other_stream = new_stream();
    other_memory = allocate(4096);
    check_cuda(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    memory_device = 0;
    INVALID(run(&good, other_stream), "stream belongs to another CUDA context than the primary one of");
#define RUN(...) (bad = good, __VA_ARGS__, run(&bad, stream))
    INVALID(RUN(bad.memory.q = other_memory), "q is 0x");
    if (!strstr(warptile_last_error(), "which is on device 1, but the description was prepared for device 0")) fail("text", warptile_last_error());
    INVALID(RUN(bad.memory.k = on_host), "k is 0x");
    if (!strstr(warptile_last_error(), "which is no memory that the CUDA driver knows")) fail("text", warptile_last_error());
    INVALID(RUN(bad.memory.workspace = on_host), "workspace is 0x");
    INVALID(RUN(bad.memory.q = NULL), "q is missing");
    INVALID(RUN(bad.memory.key_lengths = NULL), "key_lengths is missing");
    INVALID(RUN(bad.memory.lse = (float *)good.memory.q), "lse is given");
    INVALID(RUN(bad.memory.v = (const char *)good.memory.v + 2), "v starts at 0x");
    INVALID(RUN(bad.memory.out = (char *)good.memory.v + 256), "out overlaps v");
    INVALID(RUN(bad.memory.workspace = NULL), "workspace is 0x0");
    INVALID(RUN(bad.memory.workspace = (char *)good.memory.workspace + 8), "workspace is 0x");
    INVALID(RUN(bad.memory.workspace_bytes = 255), "workspace_bytes is 255, but ");
    INVALID(RUN(bad.memory.workspace = NULL, bad.memory.workspace_bytes = 0), "workspace_bytes is 0, but ");
    EQUAL(launched(stream), 0, "kernels after errors");
    WORKS(run(&good, stream));
    EQUAL(launched(stream), 1, "kernels");
    warptile_attention *none = NULL;
    EXPECT(warptile_attention_prepare(2, &good.desc, &none), WARPTILE_NO_DEVICE, "there is no CUDA device 2: this machine has 2");
    bad = good;
    bad.desc.kernel = "wgmma";
    bad.desc.element = WARPTILE_F32;
    EXPECT(warptile_attention_prepare(0, &bad.desc, &none), WARPTILE_NO_KERNEL, "no kernel for ");
    release(other_memory);
    check_cuda(cuda.cuStreamDestroy_v2(other_stream), "cuStreamDestroy");
    drop(&good);
    check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

// Captured by the caller, replayed after the handle is gone.
static void captures(void) {
    for (uint32_t unchecked = 0; unchecked < 2; unchecked++) {
        problem problem = make(unchecked);
        void *stream = new_stream(), *graph, *executable;
        check_cuda(cuda.cuStreamBeginCapture_v2(stream, unchecked ? RELAXED : 0), "cuStreamBeginCapture");
        WORKS(run(&problem, stream));
        WORKS(run(&problem, stream));
        check_cuda(cuda.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
        EQUAL(launched(stream), 0, "kernels of a capture");
        check_cuda(cuda.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
        warptile_attention_free(problem.attention);
        problem.attention = NULL;
        for (int i = 0; i < 3; i++) check_cuda(cuda.cuGraphLaunch(executable, stream), "cuGraphLaunch");
        EQUAL(launched(stream), 6, "kernels of three replays");
        check_cuda(cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
        check_cuda(cuda.cuGraphDestroy(graph), "cuGraphDestroy");
        drop(&problem);
        check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
    }
}

static void operations_beside(void) {
    void *stream = new_stream();
    warptile_append_desc writing = {0};
    writing.size = sizeof writing;
    writing.element = WARPTILE_F16;
    writing.k = writing.v = (warptile_layout){{2, 1, 2, 64}, {0, 0, 0, 0}};
    // Keys and values of each page in one tensor.
    writing.k_pages = writing.v_pages = (warptile_layout){{4, 16, 2, 64}, {4096, 128, 64, 1}};
    writing.table_columns = 2;
    writing.rotary = WARPTILE_ROTARY_HALF_SPLIT;
    writing.rotary_size = 64;
    writing.q = (warptile_layout){{2, 1, 8, 64}, {0, 0, 0, 0}};
    warptile_append *append;
    WORKS(warptile_append_prepare(0, &writing, &append));
    char *cache = allocate(4 * 4096 * 2);
    warptile_append_memory rows = {0};
    rows.size = sizeof rows;
    rows.k = allocate(512);
    rows.v = allocate(512);
    rows.q = allocate(2048);
    rows.k_pages = cache;
    rows.v_pages = cache + 4096;
    rows.block_table = (int32_t *)allocate(16);
    rows.key_lengths = (int32_t *)allocate(8);
    WORKS(warptile_append_run(append, &rows, stream));
    EQUAL(launched(stream), 1, "kernels of a write");
    rows.v_pages = cache + 2048;
    INVALID(warptile_append_run(append, &rows, stream), "k_pages overlaps v_pages");
    rows.v_pages = NULL;
    INVALID(warptile_append_run(append, &rows, stream), "v_pages is missing");
    warptile_append_free(append);

    const warptile_layout layouts[3] = {{{2, 1, 8, 64}, {0}}, {{2, 1, 8, 64}, {0}}, {{2, 1, 8, 64}, {0}}};
    warptile_merge_desc merging = {0};
    merging.size = sizeof merging;
    merging.element = WARPTILE_F16;
    merging.parts = 3;
    merging.part_layouts = layouts;
    warptile_merge *merge;
    WORKS(warptile_merge_prepare(0, &merging, &merge));
    float *lse = (float *)allocate(64);
    warptile_merge_part parts[3] = {{rows.q, lse}, {rows.q, lse}, {rows.q, lse}};
    warptile_merge_memory memory = {0};
    memory.size = sizeof memory;
    memory.parts = parts;
    memory.out = allocate(2048);
    WORKS(warptile_merge_run(merge, &memory, stream));
    EQUAL(launched(stream), 1, "kernels of a merge");
    parts[2].lse = NULL;
    INVALID(warptile_merge_run(merge, &memory, stream), "parts[2].lse is missing");
    parts[2].out = memory.out;
    parts[2].lse = lse;
    INVALID(warptile_merge_run(merge, &memory, stream), "out overlaps parts[2].out");
    parts[2].out = &memory;
    INVALID(warptile_merge_run(merge, &memory, stream), "parts[2].out is 0x");
    warptile_merge_free(merge);
    void *all[] = {(void *)(uintptr_t)rows.k, (void *)(uintptr_t)rows.v, rows.q,    cache, (void *)(uintptr_t)rows.block_table,
                   (void *)(uintptr_t)rows.key_lengths, lse, memory.out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
    check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

// The steps of a backward pass, in one run.
static void gradients(void) {
    void *stream = new_stream();
    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = WARPTILE_BF16;
    desc.q = (warptile_layout){{1, 300, 8, 64}, {0, 0, 0, 0}};
    desc.k = desc.v = (warptile_layout){{1, 300, 2, 64}, {0, 0, 0, 0}};
    desc.mask = WARPTILE_MASK_CAUSAL;
    warptile_backward_desc wanted = {0};
    wanted.size = sizeof wanted;
    wanted.attention = &desc;
    wanted.want_dq = wanted.want_dk = wanted.want_dv = 1;
    warptile_backward *backward;
    WORKS(warptile_backward_prepare(0, &wanted, &backward));
    size_t rows = 300 * 8 * 64 * 2;
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = allocate(rows);
    memory.k = allocate(rows / 4);
    memory.v = allocate(rows / 4);
    memory.out = allocate(rows);
    memory.lse = (float *)allocate(300 * 8 * 4);
    warptile_backward_memory gradients = {0}, bad;
    gradients.size = sizeof gradients;
    gradients.attention = &memory;
    gradients.d_out = allocate(rows);
    gradients.dq = allocate(rows);
    gradients.dk = allocate(rows / 4);
    gradients.dv = allocate(rows / 4);
    gradients.workspace_bytes = warptile_backward_workspace(backward);
    gradients.workspace = allocate(gradients.workspace_bytes);
    WORKS(warptile_backward_run(backward, &gradients, stream));
    size_t steps = launched(stream);
    if (steps < 2) fail("gradients", "a backward pass has at least two steps");
#define BACKWARD(...) (bad = gradients, __VA_ARGS__, warptile_backward_run(backward, &bad, stream))
    INVALID(BACKWARD(bad.dk = NULL), "dk is missing");
    INVALID(BACKWARD(bad.d_lse = memory.lse), "d_lse is given");
    INVALID(BACKWARD(bad.dv = gradients.dk), "dk overlaps dv");
    INVALID(BACKWARD(bad.dq = memory.out), "dq overlaps out");
    INVALID(BACKWARD(bad.d_out = &memory), "d_out is 0x");
    INVALID(BACKWARD(bad.workspace_bytes--), "workspace_bytes is ");
    EQUAL(launched(stream), 0, "kernels after errors");
    // The handle keeps no pointer of its description.
    memset(&desc, 0xff, sizeof desc);
    WORKS(warptile_backward_run(backward, &gradients, stream));
    EQUAL(launched(stream), steps, "kernels");
    warptile_backward_free(backward);
    const void *all[] = {memory.q, memory.k, memory.v, memory.out, memory.lse, gradients.d_out, gradients.dq, gradients.dk, gradients.dv, gradients.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release((void *)(uintptr_t)all[i]);
    check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

enum { ROWS = 512 };

// A tensor of a call over two ranks, of which each has half of the rows, on its device. Heads are of size 64.
static void on_both(int heads, void **parts) {
    for (int rank = 0; rank < 2; rank++) {
        open_device(rank);
        parts[rank] = allocate((size_t)(ROWS / 2 * heads * 64) * 2);
    }
    open_device(0);
}

typedef struct {
    warptile_attention_desc whole;
    warptile_sharded *sharded;
    // Of this process's ranks.
    size_t count;
    warptile_attention_memory memory[2];
    warptile_backward_memory back[2];
    void *q[2], *kv[2], *out[2], *dq[2], *dk[2];
} dealt_problem;

// Device memory for both ranks, or for this process's.
static void make_dealt(dealt_problem *made, warptile_group *group) {
    memset(made, 0, sizeof *made);
    made->whole.size = sizeof made->whole;
    made->whole.element = WARPTILE_BF16;
    made->whole.mask = WARPTILE_MASK_CAUSAL;
    made->whole.want_lse = 1;
    made->whole.q = (warptile_layout){{1, ROWS, 8, 64}, {0}};
    made->whole.k = made->whole.v = (warptile_layout){{1, ROWS, 2, 64}, {0}};
    warptile_sharded_desc desc = {0};
    desc.size = sizeof desc;
    desc.attention = &made->whole;
    desc.sharding = WARPTILE_SHARDING_ZIGZAG;
    WORKS(warptile_sharded_prepare(group, &desc, &made->sharded));
    on_both(8, made->q);
    on_both(2, made->kv);
    on_both(8, made->out);
    on_both(8, made->dq);
    on_both(2, made->dk);
    size_t first;
    WORKS(warptile_group_ranks(group, NULL, &first, &made->count));
    for (size_t i = 0; i < made->count; i++) {
        warptile_attention_memory *memory = &made->memory[i];
        memory->size = sizeof *memory;
        memory->q = made->q[first + i];
        memory->k = memory->v = made->kv[first + i];
        memory->out = made->out[first + i];
        warptile_backward_memory *back = &made->back[i];
        back->size = sizeof *back;
        back->attention = memory;
        back->d_out = memory->out;
        back->dq = made->dq[first + i];
        back->dk = made->dk[first + i];
    }
}

static void drop_dealt(dealt_problem *made) {
    warptile_sharded_free(made->sharded);
    void **all[] = {made->q, made->kv, made->out, made->dq, made->dk};
    for (int i = 0; i < 10; i++) release(all[i / 2][i % 2]);
}

static int forward_and_backward(dealt_problem *made) {
    warptile_sharded_output *output;
    int status = warptile_sharded_forward(made->sharded, made->memory, made->count, &output);
    if (status != WARPTILE_OK) return status;
    status = warptile_sharded_backward(made->sharded, output, made->back, made->count);
    // Work goes on after it.
    warptile_sharded_output_free(output);
    return status;
}

// A prompt and a row of one sequence, in pages of all ranks; tensors are of this process's first rank, whose context is current.
static void decode_dealt(warptile_group *group) {
    warptile_dealt_cache_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = WARPTILE_F16;
    desc.kv_heads = 2;
    desc.head_size = 64;
    warptile_dealt_cache *cache;
    WORKS(warptile_dealt_cache_create(group, &desc, &cache));
    void *kv = allocate(100 * 2 * 64 * 2), *q = allocate(8 * 64 * 2), *out = allocate(8 * 64 * 2);
    static const int64_t rows[2] = {100, 1};
    int64_t sequence;
    WORKS(warptile_dealt_cache_allocate(cache, &sequence));
    for (int i = 0; i < 2; i++) {
        WORKS(warptile_dealt_cache_step(cache, &sequence, &rows[i], 1));
        WORKS(warptile_dealt_cache_append(cache, 0, kv, kv));
    }
    INVALID(warptile_dealt_cache_append(cache, 0, &desc, kv), "k is 0x");
    warptile_attention_desc call = {0};
    call.size = sizeof call;
    call.element = WARPTILE_F16;
    call.q = (warptile_layout){{1, 1, 8, 64}, {0}};
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = q;
    memory.out = out;
    WORKS(warptile_dealt_cache_attend(cache, 0, &call, &memory));
    WORKS(warptile_group_synchronize(group, 60));
    warptile_dealt_cache_free(cache);
    release(kv);
    release(q);
    release(out);
}

// Two GPUs of one process, with streams of the caller's.
static void several_devices(void) {
    void *streams[2], *graph;
    for (int device = 1; device >= 0; device--) {
        open_device(device);
        streams[device] = new_stream();
    }
    warptile_group *group = NULL;
    const int32_t devices[2] = {0, 1};
    INVALID(warptile_group_local(devices, (void *const[]){streams[0], streams[0]}, 2, &group), "streams[1] cannot be used: ");
    INVALID(warptile_group_local(devices, (void *const[]){(void *)2, streams[1]}, 2, &group), "streams[0] cannot be used: ");
    INVALID(warptile_group_local((const int32_t[]){0, WARPTILE_CPU}, NULL, 2, &group), "rank 1 is on cpu, but rank 0 is on ");
    EXPECT(warptile_group_local((const int32_t[]){0, 7}, NULL, 2, &group), WARPTILE_NO_DEVICE, "there is no CUDA device 7");
    WORKS(warptile_group_local(devices, streams, 2, &group));
    dealt_problem problem;
    make_dealt(&problem, group);
    size_t before = fake_launch_count();
    WORKS(forward_and_backward(&problem));
    WORKS(warptile_group_synchronize(group, 60));
    if (fake_launch_count() < before + 8) fail("several_devices", "kernels are missing");
    before = fake_launch_count();
    // Nothing is launched, and the tensors of another device are named.
#define FORWARD(...) (memcpy(bad, problem.memory, sizeof bad), __VA_ARGS__, warptile_sharded_forward(problem.sharded, bad, 2, NULL))
    warptile_attention_memory bad[2];
    uint64_t calls = fake_calls("cuMemcpyPeerAsync") + fake_calls("cuMemcpyDtoDAsync_v2");
    INVALID(FORWARD(bad[0].q = problem.q[1]), "memory[0].q is 0x");
    if (!strstr(warptile_last_error(), "which is on device 1, but rank 0 is on device 0")) fail("text", warptile_last_error());
    INVALID(FORWARD(bad[0].out = problem.q[1]), "memory[0].out is 0x");
    INVALID(FORWARD(bad[1].k = bad), "memory[1].k is 0x");
    INVALID(FORWARD(bad[1].out = NULL), "memory[1].out is null");
    INVALID(warptile_sharded_lse(problem.sharded, NULL, (float *)bad), "output is null");
    check_cuda(cuda.cuStreamBeginCapture_v2(streams[0], RELAXED), "cuStreamBeginCapture");
    INVALID(warptile_sharded_forward(problem.sharded, problem.memory, 2, NULL), "the stream of rank 0 is being captured");
    check_cuda(cuda.cuStreamEndCapture(streams[0], &graph), "cuStreamEndCapture");
    check_cuda(cuda.cuGraphDestroy(graph), "cuGraphDestroy");
    EQUAL(fake_calls("cuMemcpyPeerAsync") + fake_calls("cuMemcpyDtoDAsync_v2"), calls, "copies after errors");
    WORKS(warptile_group_synchronize(group, 60));
    EQUAL(fake_launch_count(), before, "kernels after errors");
    // A failing launch names the rank, and the next call works.
    fake_fail("cuLaunchKernelEx", 1, ERROR_LAUNCH_FAILED);
    EXPECT(warptile_sharded_forward(problem.sharded, problem.memory, 2, NULL), WARPTILE_DRIVER, "rank ");
    fake_fail(NULL, 0, 0);
    WORKS(forward_and_backward(&problem));
    decode_dealt(group);
    // The group is freed before what was made of it, with work in its queues.
    warptile_group_free(group);
    WORKS(forward_and_backward(&problem));
    for (int device = 1; device >= 0; device--) {
        open_device(device);
        wait_for(streams[device]);
    }
    drop_dealt(&problem);
    for (int device = 1; device >= 0; device--) {
        open_device(device);
        check_cuda(cuda.cuStreamDestroy_v2(streams[device]), "cuStreamDestroy");
    }
    // The default streams, and a GPU that is there twice.
    WORKS(warptile_group_local((const int32_t[]){0, 0}, NULL, 2, &group));
    warptile_group_free(group);
    launched(NULL);
}

// Every call of the driver fails in turn, over two devices: a code and a text, and the next try works.
static void faults_of_several(void) {
    warptile_group *group;
    int hits = 0;
    WORKS(warptile_group_local((const int32_t[]){0, 1}, NULL, 2, &group));
    dealt_problem problem;
    make_dealt(&problem, group);
    uint64_t before = fake_calls(NULL);
    WORKS(forward_and_backward(&problem));
    for (uint64_t nth = 1, calls = fake_calls(NULL) - before; nth < calls; nth += 1 + nth / 4) {
        fake_fail(NULL, nth, ERROR_LAUNCH_FAILED);
        int status = forward_and_backward(&problem);
        fake_fail(NULL, 0, 0);
        if (status == WARPTILE_OK) continue;
        hits++;
        // What an address is of was asked.
        if (strstr(warptile_last_error(), "no memory that the CUDA driver knows")) continue;
        EXPECT(status, WARPTILE_DRIVER, "");
        if (!strstr(warptile_last_error(), "CUDA_ERROR_LAUNCH_FAILED")) fail("text", warptile_last_error());
        // What failed while something ended may be found once, too, on either device.
        for (int i = 0; i < 2; i++) warptile_group_synchronize(group, 60);
        WORKS(forward_and_backward(&problem));
    }
    if (hits < 10) fail("faults", "few calls of the driver were hit");
    for (int i = 0; i < 2; i++) warptile_group_synchronize(group, 60);
    WORKS(warptile_group_synchronize(group, 60));
    drop_dealt(&problem);
    warptile_group_free(group);
    launched(NULL);
}

typedef struct {
    warptile_world world;
    warptile_group *group;
    dealt_problem problem;
    void *context;
    char text[500];
} process;

static void *meet(void *of) {
    process *self = of;
    WORKS(warptile_group_nccl(&self->world, (int32_t)self->world.rank, NULL, &self->group));
    return NULL;
}

static void *compute(void *of) {
    process *self = of;
    WORKS(forward_and_backward(&self->problem));
    WORKS(warptile_group_synchronize(self->group, 60));
    check_cuda(cuda.cuCtxSetCurrent(self->context), "cuCtxSetCurrent");
    decode_dealt(self->group);
    return NULL;
}

// Another problem on one rank than on the other.
static void *disagree(void *of) {
    process *self = of;
    EXPECT(forward_and_backward(&self->problem), WARPTILE_RANKS, "");
    snprintf(self->text, sizeof self->text, "%s", warptile_last_error());
    EXPECT(warptile_group_synchronize(self->group, 60), WARPTILE_RANKS, self->text);
    return NULL;
}

static void *leave(void *of) {
    process *self = of;
    drop_dealt(&self->problem);
    warptile_group_free(self->group);
    return NULL;
}

static void on_threads(void *(*step)(void *), process *processes) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, step, &processes[i])) fail("pthread_create", "failed");
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

// Ranks over the stand-in for NCCL, WARPTILE_LIBNCCL: a thread each.
static void over_nccl(void) {
    struct sockaddr_in address = {0};
    socklen_t len = sizeof address;
    char text[40];
    // A port that is free now.
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || getsockname(listener, (struct sockaddr *)&address, &len)) {
        fail("bind", "no port");
    }
    close(listener);
    snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(address.sin_port));
    static process processes[2];
    for (int64_t rank = 0; rank < 2; rank++) {
        warptile_world *world = &processes[rank].world;
        world->size = sizeof *world;
        world->rank = rank;
        world->ranks = 2;
        world->address = text;
    }
    EXPECT((processes[1].world.timeout = 0.1, warptile_group_nccl(&processes[1].world, 1, NULL, &processes[1].group)), WARPTILE_RANKS,
           "the ranks have not met: rank 1 and rank 0 at ");
    processes[1].world.timeout = 0;
    on_threads(meet, processes);
    for (int i = 0; i < 2; i++) {
        make_dealt(&processes[i].problem, processes[i].group);
        open_device(i);
        check_cuda(cuda.cuCtxGetCurrent(&processes[i].context), "cuCtxGetCurrent");
    }
    INVALID(warptile_sharded_lse(processes[0].problem.sharded, NULL, (float *)text), "output is null");
    on_threads(compute, processes);
    on_threads(compute, processes);
    warptile_sharded_free(processes[1].problem.sharded);
    warptile_sharded_desc other = {0};
    other.size = sizeof other;
    other.attention = &processes[1].problem.whole;
    WORKS(warptile_sharded_prepare(processes[1].group, &other, &processes[1].problem.sharded));
    on_threads(disagree, processes);
    if (strcmp(processes[0].text, processes[1].text) != 0 || !strstr(processes[0].text, "sharding")) fail("texts", processes[0].text);
    for (int device = 1; device >= 0; device--) {
        open_device(device);
        wait_for(NULL);
    }
    on_threads(leave, processes);
    launched(NULL);
}

// Every call of the driver fails in turn: a code and a text, and the next try works.
static void faults(void) {
    problem good = make(0);
    void *stream = new_stream();
    warptile_attention *attention = NULL;
    int hits = 0;
    for (uint64_t nth = 1;; nth++) {
        // Another problem each time, which must be prepared and whose kernel may have to be loaded.
        good.desc.k.shape[1] = good.desc.v.shape[1] = 4096;
        good.desc.q.shape[3] = good.desc.k.shape[3] = good.desc.v.shape[3] = nth % 2 ? 64 : 80;
        good.desc.sinks = (uint32_t)(nth / 2 % 2);
        fake_fail(NULL, nth, ERROR_LAUNCH_FAILED);
        int status = warptile_attention_prepare(0, &good.desc, &attention);
        fake_fail(NULL, 0, 0);
        if (status == WARPTILE_OK) {
            warptile_attention_free(attention);
            if (nth > 8) break;
            continue;
        }
        hits++;
        // The first call is that of cuInit.
        EXPECT(status, nth == 1 ? WARPTILE_NO_DEVICE : WARPTILE_DRIVER, "");
        if (!strstr(warptile_last_error(), "CUDA_ERROR_LAUNCH_FAILED")) fail("text", warptile_last_error());
        WORKS(warptile_attention_prepare(0, &good.desc, &attention));
        warptile_attention_free(attention);
    }
    if (hits == 0) fail("faults", "no call of the driver was hit while preparing");
    EQUAL(launched(stream), 0, "kernels");
    fake_fail("cuLaunchKernelEx", 1, ERROR_LAUNCH_FAILED);
    int status = run(&good, stream);
    fake_fail(NULL, 0, 0);
    if (status == WARPTILE_OK) {
        fake_fail("cuLaunchKernel", 1, ERROR_LAUNCH_FAILED);
        status = run(&good, stream);
        fake_fail(NULL, 0, 0);
        launched(stream);
    }
    EXPECT(status, WARPTILE_DRIVER, "");
    WORKS(run(&good, stream));
    EQUAL(launched(stream), 1, "kernels");
    // The device of another description, and no memory for its kernels.
    fake_fail_always("cuModuleLoadDataEx", ERROR_OUT_OF_MEMORY);
    good.desc.q.shape[3] = good.desc.k.shape[3] = good.desc.v.shape[3] = 256;
    EXPECT(warptile_attention_prepare(0, &good.desc, &attention), WARPTILE_OUT_OF_MEMORY, "");
    fake_fail_always("", 0);
    drop(&good);
    check_cuda(cuda.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

int main(void) {
    // The stand-in has two devices before anything asks for one.
    void *library = dlopen(getenv("WARPTILE_LIBCUDA"), RTLD_NOW);
    if (!library) fail("WARPTILE_LIBCUDA", dlerror());
    cuda.library = library;
#define FAKE(name) *(void **)&name = driver_function(#name)
    FAKE(fake_set_device_count);
    FAKE(fake_fail);
    FAKE(fake_fail_always);
    FAKE(fake_calls);
    FAKE(fake_launch_count);
    FAKE(fake_violation_count);
    FAKE(fake_violation);
    fake_set_device_count(2);
    int32_t count = 0;
    fake_fail_always("cuInit", ERROR_SYSTEM_DRIVER_MISMATCH);
    EXPECT(warptile_device_count(&count), WARPTILE_NO_DEVICE, "initialising the CUDA driver: cuInit failed");
    fake_fail_always("", 0);
    WORKS(warptile_device_count(&count));
    EQUAL((uint64_t)count, 2, "devices");
    open_device(0);

    one_call_of_the_driver();
    wrong_memory();
    captures();
    operations_beside();
    gradients();
    several_devices();
    faults_of_several();
    over_nccl();
    faults();
    for (size_t i = 0; i < fake_violation_count(); i++) {
        char text[1000];
        fake_violation(i, text, sizeof text);
        fprintf(stderr, "violation: %s\n", text);
    }
    EQUAL(fake_violation_count(), 0, "violations");
    printf("stand_in: ok\n");
    return 0;
}
