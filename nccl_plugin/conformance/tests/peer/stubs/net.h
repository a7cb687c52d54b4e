// See utils.h.
#pragma once

#include "nccl_net.h"
#include "utils.h"
