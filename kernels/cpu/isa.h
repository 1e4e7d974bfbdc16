/* One source, several instruction sets. Files that are worth it are compiled once for each set
 * with PL_ISA_SUFFIX defined (kernels/CMakeLists.txt); every function with external linkage in
 * them has its name wrapped in PL_ISA, and the table of the best set is chosen at run time.
 */
#ifndef PL_KERNELS_CPU_ISA_H
#define PL_KERNELS_CPU_ISA_H

#ifndef PL_ISA_SUFFIX
#define PL_ISA_SUFFIX baseline
#endif
#define PL_ISA_JOIN_NOW(name, suffix) name##_##suffix
#define PL_ISA_JOIN(name, suffix)     PL_ISA_JOIN_NOW(name, suffix)
#define PL_ISA(name)                  PL_ISA_JOIN(name, PL_ISA_SUFFIX)

#endif
