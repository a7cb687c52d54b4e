// Table v12: v11 with rail and plane ids in the properties.
#include "abi/context.h"

FABRIC_EXPORT_TABLE(fabric::abi::NetV12, ncclNetPlugin_v12,
                    fabric::abi::context_table<fabric::abi::NetV12>());
