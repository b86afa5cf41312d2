#pragma once
namespace warptile { inline unsigned dynamic_shared_bytes() { return sizeof shared; } }
