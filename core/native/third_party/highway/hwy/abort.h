// Copyright 2024 Arm Limited and/or its affiliates <open-source-office@arm.com>
// SPDX-License-Identifier: Apache-2.0
// SPDX-License-Identifier: BSD-3-Clause

#ifndef HIGHWAY_HWY_ABORT_H_
#define HIGHWAY_HWY_ABORT_H_

// Empty header for compatibility.
// All Abort/Warn functionalities are in base.h.

#endif  // HIGHWAY_HWY_ABORT_H_
