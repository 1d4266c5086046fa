/* Names for the element type T: included before the code for it, and `typed_end.template.h` after. */
#define TYPED(name) CAT(CAT(name, _), T)
#define ELEMENT CAT(pw_, T)
#define LOAD CAT(v_load_, T)
#define STORE CAT(v_store_, T)
#define LOAD_END CAT(v_load_end_, T)
#define STORE_END CAT(v_store_end_, T)
#define LOAD_SOME CAT(v_load_some_, T)
#define STORE_SOME CAT(v_store_some_, T)
