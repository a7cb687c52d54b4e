// See utils.h.
#pragma once

#include "utils.h"
