/* Products of a few rows of activations with matrices packed once: the linear layers of a model.
 *
 * A step that generates one token for each of some sequences reads every weight and does little
 * with it: its time is that of reading them. So they are packed in the order in which they are
 * read, each thread fetches what it needs next while it computes, and what else a product does
 * (quantizing or widening its inputs, scaling and rounding its outputs) happens on the way. */
#include "linear.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "kernel.h"
#include "processor/arithmetic.h"
#include "processor/scratch.h"

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

enum {
    PARTS_PER_THREAD = 16,
    LEAST_PART = 1 << 19,      /* multiply-adds worth being handed over */
    FINE_PART = 1 << 22,       /* multiply-adds, of which there may be parts without number */
    LEAST_PREPARED = 1 << 12,  /* inputs worth being handed over */
    LEAST_GATHERED = 1 << 16,  /* bytes worth being handed over */
    READ_ROWS = 8,             /* so many rows take as long as reading the weights does */
    ROW_UNIT = 96,             /* a whole number of tiles for every kernel */
    CHUNK_BYTES = 1 << 18,     /* of rows that stay in the core's second cache */
};

/* A run in chunks of rows, which a core's second cache holds while it passes over them with one strip
 * after the other, and each of these in parts of as many groups of strips. */
typedef struct {
    pw_linear_job job;
    int64_t first_part, chunk_rows, part_groups, chunk_parts;
} run_parts;

typedef struct {
    const pw_linear_product *product;
    const pw_linear_kernel *kernel;
    int64_t width;     /* of a row, padding included */
    pw_linear_job job; /* of all inputs; then of all rows */
    char *operand;     /* where inputs are prepared, unless they are read as they are */
    float *spare;      /* a row for each part of the preparation */
    char *gathered;    /* where rows are gathered from inputs, if they are */
    float *gathered_scales;
    run_parts *runs;
} task_context;

static void prepare_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const int64_t rows = task->job.rows;
    task->kernel->prepare(&task->job, task->operand, task->spare + part * task->width,
                          rows * part / num_parts, rows * (part + 1) / num_parts);
}

static void gather_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const int64_t rows = task->product->rows, stride = task->job.operand_stride;
    const int64_t last = rows * (part + 1) / num_parts;
    for (int64_t row = rows * part / num_parts; row < last; row++) {
        const int64_t source = task->product->sources[row];
        memcpy(task->gathered + row * stride, task->job.operand + source * stride, (size_t)stride);
        if (task->job.row_scales) {
            task->gathered_scales[row] = task->job.row_scales[source];
        }
    }
}

/* Copies the rows, as the kernel reads them, to where the runs have them one after the other. */
static void gather(task_context *task) {
    const int64_t rows = task->product->rows;
    const int64_t parts = rows * task->job.operand_stride / LEAST_GATHERED + 1;
    pw_parallel(gather_part, task, (int)pw_least(rows, parts));
    task->job.operand = task->gathered;
    task->job.row_scales = task->job.row_scales ? task->gathered_scales : NULL;
}

/* `count` rows of a product, from `first` on. */
static pw_linear_job rows_of(const pw_linear_job *all, int64_t first, int64_t count) {
    pw_linear_job job = *all;
    const int64_t outputs = first * job.weights->out_features;
    job.rows = count;
    job.operand += first * job.operand_stride;
    job.outputs = (char *)job.outputs + outputs * pw_size(job.output_type);
    job.row_scales = job.row_scales ? job.row_scales + first : NULL;
    return job;
}

/* The run that a part belongs to. */
static const run_parts *run_of(const task_context *task, int64_t part) {
    int64_t run = 0, end = task->product->num_runs;
    while (end - run > 1) {
        const int64_t middle = (run + end) / 2;
        if (task->runs[middle].first_part <= part) {
            run = middle;
        } else {
            end = middle;
        }
    }
    return &task->runs[run];
}

/* The first strip of a part of a chunk, or the end of all. */
static int64_t first_strip(const task_context *task, const run_parts *run, int64_t part) {
    const int64_t strips = pw_ceiling(run->job.weights->out_features, PW_STRIP);
    return pw_least(part * run->part_groups * task->kernel->strips, strips);
}

static const uint32_t *weights_of(const task_context *task, int64_t part) {
    const run_parts *run = run_of(task, part);
    const int64_t in_chunk = (part - run->first_part) % run->chunk_parts;
    return pw_strip(run->job.weights, first_strip(task, run, in_chunk));
}

static void compute_part(void *context, int part, int num_parts) {
    const task_context *task = context;
    const run_parts *run = run_of(task, part);
    const int64_t chunk = (part - run->first_part) / run->chunk_parts;
    const int64_t mine = (part - run->first_part) % run->chunk_parts;
    const int64_t first = chunk * run->chunk_rows;
    const int64_t rows = pw_least(run->job.rows - first, run->chunk_rows);
    const pw_linear_job job = rows_of(&run->job, first, rows);
    task->kernel->compute(&job, first_strip(task, run, mine), first_strip(task, run, mine + 1),
                          weights_of(task, pw_least(part + pw_threads(), num_parts - 1)));
}

/* How long a chunk of so many rows takes, in multiply-adds. */
static int64_t work_of(const pw_linear_weights *weights, int64_t rows) {
    return weights->in_features * weights->out_features * (rows + READ_ROWS);
}

/* Cuts a run into parts of about `part_work`, each worth being handed over; returns their number. */
static int64_t cut_run(const task_context *task, run_parts *run, int64_t part_work) {
    const pw_linear_job *job = &run->job;
    const int64_t held = CHUNK_BYTES / job->operand_stride / ROW_UNIT * ROW_UNIT;
    run->chunk_rows = pw_least(job->rows, held > ROW_UNIT ? held : ROW_UNIT);
    const int64_t groups = pw_ceiling(job->weights->out_features, PW_STRIP * task->kernel->strips);
    const int64_t work = work_of(job->weights, run->chunk_rows);
    const int64_t worth = pw_ceiling(groups * LEAST_PART, work);
    run->part_groups = pw_least(pw_most(groups * part_work / work, worth), groups);
    run->chunk_parts = pw_ceiling(groups, run->part_groups);
    return run->chunk_parts * pw_ceiling(job->rows, run->chunk_rows);
}

/* Cuts all runs: into enough parts that no thread waits long for the others, whatever rows each run
 * has. Returns the number of parts. */
static int64_t cut(task_context *task) {
    const pw_linear_product *product = task->product;
    int64_t work = 0, parts = 0, row = 0;
    for (int64_t i = 0; i < product->num_runs; i++) {
        work += work_of(product->runs[i].weights, product->runs[i].rows);
    }
    const int64_t part_work = pw_least(work / (pw_threads() * PARTS_PER_THREAD), FINE_PART);
    for (int64_t i = 0; i < product->num_runs; i++) {
        run_parts *run = &task->runs[i];
        run->first_part = parts;
        run->job = rows_of(&task->job, row, product->runs[i].rows);
        run->job.weights = product->runs[i].weights;
        parts += cut_run(task, run, part_work);
        row += run->job.rows;
    }
    return parts;
}

/* Whether the kernel reads inputs as they come. */
static bool is_ready(const task_context *task) {
    const pw_linear_weights *weights = task->job.weights;
    return task->kernel->operand_type == task->job.type && task->width == weights->in_features &&
           weights->type != PW_INT8;
}

/* Memory of the calling thread, for `parts` of a preparation, or 0 of them. */
static void take_memory(task_context *task, int64_t parts) {
    static _Thread_local pw_kept kept;
    const pw_linear_product *product = task->product;
    const int64_t prepared = parts ? product->num_inputs : 0;
    const int64_t gathered = product->sources ? product->rows : 0;
    const int64_t stride = task->job.operand_stride;
    size_t bytes = 0;
    const size_t runs = pw_carve(&bytes, product->num_runs * (int64_t)sizeof(run_parts));
    const size_t scales = pw_carve(&bytes, prepared * (int64_t)sizeof(float));
    const size_t gathered_scales = pw_carve(&bytes, gathered * (int64_t)sizeof(float));
    const size_t spare = pw_carve(&bytes, parts * task->width * (int64_t)sizeof(float));
    const size_t operand = pw_carve(&bytes, prepared * stride);
    const size_t rows = pw_carve(&bytes, gathered * stride);
    char *memory = pw_keep(&kept, bytes);
    task->runs = (run_parts *)(memory + runs);
    task->job.row_scales = parts ? (float *)(memory + scales) : NULL;
    task->gathered_scales = (float *)(memory + gathered_scales);
    task->spare = (float *)(memory + spare);
    task->operand = memory + operand;
    task->gathered = memory + rows;
}

void pw_linear_runs(const pw_linear_product *product) {
    if (product->rows == 0) {
        return;
    }
    const pw_linear_weights *weights = product->runs[0].weights;
    const pw_linear_kernel *kernel = choose_kernel(weights->type);
    const int64_t width = pw_padded_inputs(weights), inputs = product->num_inputs;
    task_context task = {
        .product = product,
        .kernel = kernel,
        .width = width,
        .job = {.weights = weights, .rows = inputs, .type = product->type,
                .output_type = product->output_type, .inputs = product->inputs,
                .outputs = product->outputs, .operand = product->inputs,
                .operand_stride = width / 16 * kernel->operand_bytes},
    };
    const int64_t worth = pw_least(inputs, inputs * width / LEAST_PREPARED + 1);
    const int64_t parts = is_ready(&task) ? 0 : worth;
    take_memory(&task, parts);
    if (parts) {
        task.job.operand = task.operand;
        pw_parallel(prepare_part, &task, (int)parts);
    }
    if (product->sources) {
        gather(&task);
    }
    pw_parallel(compute_part, &task, (int)cut(&task));
}

void pw_linear(const pw_linear_weights *weights, int64_t rows, int64_t type, const void *inputs,
               void *outputs) {
    const pw_linear_run run = {weights, rows};
    const pw_linear_product product = {
        .runs = &run, .num_runs = 1, .rows = rows, .num_inputs = rows, .inputs = inputs,
        .outputs = outputs, .type = type, .output_type = type,
    };
    pw_linear_runs(&product);
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
