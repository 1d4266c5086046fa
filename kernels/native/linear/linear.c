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

#include "kernel.h"
#include "processor/arithmetic.h"

/* The kernel that multiplies weights of that type by `path`, or NULL where there is none. */
static const pw_linear_kernel *find_kernel(int64_t type, int64_t path) {
    switch (path) {
    case PW_BY_TILES: return pw_linear_tiles(type);
    case PW_BY_WORDS: return pw_linear_words(type);
    default: return pw_linear_floats();
    }
}

/* For weights of each type; where there is no such path, the next one below it is taken. */
static _Atomic int wanted_paths[] = {PW_BY_TILES, PW_BY_TILES, PW_BY_TILES};

static const pw_linear_kernel *choose_kernel(int64_t type) {
    const pw_linear_kernel *kernel = pw_linear_groups(type);
    if (kernel == NULL) {
        int path = atomic_load_explicit(&wanted_paths[type], memory_order_relaxed);
        while ((kernel = find_kernel(type, path)) == NULL) {
            path--;
        }
    }
    return kernel;
}

int64_t pw_linear_has_path(int64_t type, int64_t path) { return find_kernel(type, path) != NULL; }

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

static void prepare_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const int64_t rows = task->job.rows;
    task->kernel->prepare(&task->job, task->operand, task->spare + part * task->width,
                          rows * part / num_parts, rows * (part + 1) / num_parts);
}

static int64_t first_strip(const task_context *task, int64_t part) {
    const int64_t strips = pw_ceiling(task->job.weights->out_features, PW_STRIP);
    return pw_least(part * task->part_groups * task->kernel->strips, strips);
}

/* The part of a product for a chunk of its rows. */
static pw_linear_job rows_of(const task_context *task, int64_t chunk) {
    pw_linear_job job = task->job;
    const int64_t first = chunk * task->chunk_rows;
    const int64_t outputs = first * job.weights->out_features;
    job.rows = pw_least(job.rows - first, task->chunk_rows);
    job.operand += first * job.operand_stride;
    job.outputs = (char *)job.outputs + outputs * pw_size(job.type);
    job.row_scales = job.row_scales ? job.row_scales + first : NULL;
    return job;
}

static void compute_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const pw_linear_job job = rows_of(task, part / task->chunk_parts);
    const int64_t next = pw_least(part + pw_threads(), num_parts - 1) % task->chunk_parts;
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
    task->chunk_rows = pw_least(task->job.rows, held > ROW_UNIT ? held : ROW_UNIT);
    const int64_t groups = pw_ceiling(weights->out_features, PW_STRIP * task->kernel->strips);
    const int64_t work = weights->in_features * weights->out_features * (task->chunk_rows + 8);
    const int64_t most = pw_most((int64_t)pw_threads() * PARTS_PER_THREAD, work / FINE_PART);
    const int64_t worth = pw_ceiling(groups * LEAST_PART, work);
    task->part_groups = pw_least(pw_most(groups / most, worth), groups);
    task->chunk_parts = pw_ceiling(groups, task->part_groups);
    return task->chunk_parts * pw_ceiling(task->job.rows, task->chunk_rows);
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

void pw_linear(const pw_linear_weights *weights, int64_t rows, int64_t type, const void *inputs,
               void *outputs) {
    if (rows == 0) {
        return;
    }
    const pw_linear_kernel *kernel = choose_kernel(weights->type);
    const int64_t width = pw_padded_inputs(weights);
    task_context task = {
        .job = {.weights = weights, .rows = rows, .type = type, .inputs = inputs,
                .outputs = outputs, .operand = inputs,
                .operand_stride = width / 16 * kernel->operand_bytes},
        .kernel = kernel,
        .width = width,
    };
    const bool as_it_is = kernel->operand_type == type && width == weights->in_features;
    if (!as_it_is || weights->type == PW_INT8) {
        const int64_t parts = pw_least(rows, rows * width / LEAST_PREPARED + 1);
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
    const int64_t strips = pw_ceiling(pack->rows, PW_STRIP);
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

void pw_linear_pack(const uint32_t *from, int64_t rows, int64_t words, uint32_t *to) {
    pack_context pack = {from, to, rows, words};
    pw_parallel(pack_part, &pack, (int)pw_ceiling(rows, 256));
}
