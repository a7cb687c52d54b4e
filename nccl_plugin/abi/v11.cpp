// Table v11: a context per communicator.
#include "abi/context.h"

FABRIC_EXPORT_TABLE(fabric::abi::NetV11, ncclNetPlugin_v11,
                    fabric::abi::context_table<fabric::abi::NetV11>());
