/* Tells the loader which sources this library was built from. */
#include "processor/pool.h"

PW_EXPORT const char *pw_sources(void);

const char *pw_sources(void) { return PW_SOURCES; }
