// SPDX-License-Identifier: BSD-3-Clause

// A header of the upper room.
#pragma once
