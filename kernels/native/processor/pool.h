/* Threads that share the parts of one task; see pool.c. */
#ifndef PW_POOL_H
#define PW_POOL_H

#define PW_EXPORT __attribute__((visibility("default")))

typedef void (*pw_task)(void *context, int part, int num_parts);

/* Run task(context, part, num_parts) once for every part, and return when all are done.
 *
 * The caller runs part 0 and, like every thread of the pool, takes further parts as they come: a
 * part must not depend on which thread runs it, nor on when. Several callers take turns; a call
 * from within a task runs its parts one after the other, in the calling thread. */
PW_EXPORT void pw_parallel(pw_task task, void *context, int num_parts);

/* How many threads compute, the caller included. 1 until set. */
PW_EXPORT int pw_threads(void);

/* Takes effect with the next task; threads start when a task first needs them. */
PW_EXPORT void pw_set_threads(int count);

#endif
