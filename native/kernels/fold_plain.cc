// The kernels for any processor of the architecture that the library is compiled for.

#include "kernels/fold.h"

namespace hvd {

const KernelTable& plain_kernels() noexcept { return kTable; }

}  // namespace hvd
