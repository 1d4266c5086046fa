/* Undoes `typed.template.h`. */
#undef TYPED
#undef ELEMENT
#undef LOAD
#undef STORE
#undef LOAD_END
#undef STORE_END
#undef LOAD_SOME
#undef STORE_SOME
#undef T
