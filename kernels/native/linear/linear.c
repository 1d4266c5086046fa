/* Products of a few rows of activations with matrices packed once: the linear layers of a model.
 *
 * A step that generates one token for each of some sequences reads every weight and does little
 * with it: its time is that of reading them. So they are packed in the order in which they are
 * read, each thread fetches what it needs next while it computes, and what else a product does
 * (quantizing or widening its inputs, scaling and rounding its outputs) happens on the way. */
#include "linear.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define NAME(name) avx512_##name
#define LANES 16
#define TILE_ROWS 8
#define TILE_STRIPS 3
#include "fma.template.h"

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) avx2_##name
#define LANES 8
#define TILE_ROWS 6
#define TILE_STRIPS 1
#include "fma.template.h"
#endif

#define TARGET
#define NAME(name) portable_##name
#define LANES 4
#define TILE_ROWS 2
#define TILE_STRIPS 1
#include "fma.template.h"

/* The kernel that multiplies weights of that type by `path`, or NULL where there is none. */
static const pw_linear_kernel *find_kernel(int64_t type, pw_path path) {
#if defined(__x86_64__)
    const pw_level level = pw_cpu_level();
    if (path == PW_BY_TILES) {
        return level >= PW_AMX ? pw_linear_amx(type) : NULL;
    }
    if (path == PW_BY_WORDS && type == PW_BFLOAT16) {
        return level >= PW_AVX512_BF16 ? pw_linear_pairs(type) : NULL;
    }
    if (path == PW_BY_WORDS) {
        return level >= PW_AVX512 ? pw_linear_vnni(type) : NULL;
    }
    if (level >= PW_AVX2) {
        return level >= PW_AVX512 ? &avx512_kernel : &avx2_kernel;
    }
#else
    (void)type;
    if (path != PW_BY_FLOATS) {
        return NULL;
    }
#endif
    return &portable_kernel;
}

/* For weights of each type; where there is no such path, the next one below it is taken. */
static _Atomic int wanted_paths[] = {PW_BY_TILES, PW_BY_TILES, PW_BY_TILES};

static const pw_linear_kernel *choose_kernel(int64_t type) {
    if (pw_is_grouped(type)) {
        return pw_linear_grouped();
    }
    const int wanted = atomic_load_explicit(&wanted_paths[type], memory_order_relaxed);
    for (int path = wanted; path > PW_BY_FLOATS; path--) {
        const pw_linear_kernel *kernel = find_kernel(type, (pw_path)path);
        if (kernel) {
            return kernel;
        }
    }
    return find_kernel(type, PW_BY_FLOATS);
}

int64_t pw_linear_has_path(int64_t type, int64_t path) {
    return find_kernel(type, (pw_path)path) != NULL;
}

void pw_linear_use_path(int64_t type, int64_t path) { atomic_store(&wanted_paths[type], (int)path); }

typedef struct {
    pw_linear_job job;
    const pw_linear_kernel *kernel;
    char *operand;
    float *spare; /* a row for each part of the preparation */
    int64_t width; /* of a row, padding included */
    int64_t chunk_rows, part_groups, chunk_parts; /* see `cut` */
} task_context;

enum {
    PARTS_PER_THREAD = 16,
    LEAST_PART = 1 << 19,      /* multiply-adds worth being handed over */
    FINE_PART = 1 << 22,       /* multiply-adds, of which there may be parts without number */
    LEAST_PREPARED = 1 << 12,  /* inputs worth being handed over */
    ROW_UNIT = 96,             /* a whole number of tiles for every kernel */
    CHUNK_BYTES = 1 << 18,     /* of rows that stay in the core's second cache */
};

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }

static int64_t at_least(int64_t value, int64_t limit) { return value > limit ? value : limit; }

static void prepare_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const int64_t rows = task->job.rows;
    task->kernel->prepare(&task->job, task->operand, task->spare + part * task->width,
                          rows * part / num_parts, rows * (part + 1) / num_parts);
}

static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t first_strip(const task_context *task, int64_t part) {
    const int64_t strips = ceiling(task->job.weights->out_features, PW_STRIP);
    return at_most(part * task->part_groups * task->kernel->strips, strips);
}

/* The part of a product for a chunk of its rows. */
static pw_linear_job rows_of(const task_context *task, int64_t chunk) {
    pw_linear_job job = task->job;
    const int64_t first = chunk * task->chunk_rows;
    const int64_t outputs = first * job.weights->out_features;
    job.rows = at_most(job.rows - first, task->chunk_rows);
    job.operand += first * job.operand_stride;
    job.outputs = (char *)job.outputs + outputs * (job.type == PW_FLOAT32 ? 4 : 2);
    job.row_scales = job.row_scales ? job.row_scales + first : NULL;
    return job;
}

static void compute_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const pw_linear_job job = rows_of(task, part / task->chunk_parts);
    const int64_t next = at_most(part + pw_threads(), num_parts - 1) % task->chunk_parts;
    const int64_t mine = part % task->chunk_parts;
    task->kernel->compute(&job, first_strip(task, mine), first_strip(task, mine + 1),
                          first_strip(task, next));
}

/* Cuts a product into chunks of rows, which a core's second cache holds while it passes over them
 * with one strip after the other, and each into parts of as many groups of strips: enough parts that
 * no thread waits long for the others, each worth being handed over. Returns the number of all. */
static int64_t cut(task_context *task) {
    const pw_linear_weights *weights = task->job.weights;
    const int64_t held = CHUNK_BYTES / task->job.operand_stride / ROW_UNIT * ROW_UNIT;
    task->chunk_rows = at_most(task->job.rows, held > ROW_UNIT ? held : ROW_UNIT);
    const int64_t groups = ceiling(weights->out_features, PW_STRIP * task->kernel->strips);
    const int64_t work = weights->in_features * weights->out_features * (task->chunk_rows + 8);
    const int64_t most = at_least((int64_t)pw_threads() * PARTS_PER_THREAD, work / FINE_PART);
    const int64_t worth = ceiling(groups * LEAST_PART, work);
    task->part_groups = at_most(at_least(groups / most, worth), groups);
    task->chunk_parts = ceiling(groups, task->part_groups);
    return task->chunk_parts * ceiling(task->job.rows, task->chunk_rows);
}

/* Memory of the calling thread for operands; grows to what its largest product needs. */
static char *scratch(size_t bytes) {
    static _Thread_local char *memory;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(memory);
        memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!memory) {
            perror("partywall: inputs of a product");
            abort();
        }
        size = bytes;
    }
    return memory;
}

/* Inputs of a row, padding included. */
static int64_t padded_width(const pw_linear_weights *weights) {
    static const int64_t per_word[] = {1, 2, 4};
    return pw_is_grouped(weights->type)
               ? weights->words / pw_group_lines(weights->type) * PW_GROUP
               : weights->words * per_word[weights->type];
}

/* Bytes of a row as the kernel reads it. */
static int64_t operand_bytes(const pw_linear_kernel *kernel, int64_t width) {
    static const int64_t size_of[] = {4, 2, 1};
    return pw_is_grouped(kernel->operand_type)
               ? width / PW_GROUP * (int64_t)sizeof(pw_input_group)
               : width * size_of[kernel->operand_type];
}

void pw_linear(const pw_linear_weights *weights, int64_t rows, int64_t type, const void *inputs,
               void *outputs) {
    if (rows == 0) {
        return;
    }
    const pw_linear_kernel *kernel = choose_kernel(weights->type);
    const int64_t width = padded_width(weights);
    task_context task = {
        .job = {.weights = weights, .rows = rows, .type = type, .inputs = inputs,
                .outputs = outputs, .operand = inputs,
                .operand_stride = operand_bytes(kernel, width)},
        .kernel = kernel,
        .width = width,
    };
    const bool as_it_is = kernel->operand_type == type && width == weights->in_features;
    if (!as_it_is || weights->type == PW_INT8) {
        const int64_t parts = at_most(rows, rows * width / LEAST_PREPARED + 1);
        const size_t scales_bytes = ((size_t)rows * sizeof(float) + 63) / 64 * 64;
        const size_t spare_bytes = (size_t)(parts * width) * sizeof(float);
        const size_t rows_bytes = (size_t)(rows * task.job.operand_stride);
        char *memory = scratch(scales_bytes + spare_bytes + rows_bytes);
        task.job.row_scales = (float *)memory;
        task.spare = (float *)(memory + scales_bytes);
        task.job.operand = task.operand = memory + scales_bytes + spare_bytes;
        pw_parallel(prepare_part, &task, (int)parts);
    }
    pw_parallel(compute_part, &task, (int)cut(&task));
}

typedef struct {
    const uint32_t *from;
    uint32_t *to;
    int64_t rows, words;
} pack_context;

static void pack_part(void *context, int part, int num_parts) {
    const pack_context *pack = context;
    const int64_t strips = (pack->rows + PW_STRIP - 1) / PW_STRIP;
    const int64_t last = strips * (part + 1) / num_parts;
    for (int64_t strip = strips * part / num_parts; strip < last; strip++) {
        uint32_t *to = pack->to + strip * pack->words * PW_STRIP;
        for (int64_t column = 0; column < PW_STRIP; column++) {
            const int64_t row = strip * PW_STRIP + column;
            const uint32_t *from = pack->from + row * pack->words;
            for (int64_t word = 0; word < pack->words; word++) {
                to[word * PW_STRIP + column] = row < pack->rows ? from[word] : 0;
            }
        }
    }
}

/* Reorders a matrix of `rows` output columns, each `words` long (a multiple of 16), to strips. */
PW_EXPORT void pw_linear_pack(const uint32_t *from, int64_t rows, int64_t words, uint32_t *to) {
    pack_context pack = {from, to, rows, words};
    pw_parallel(pack_part, &pack, (int)((rows + 255) / 256));
}
