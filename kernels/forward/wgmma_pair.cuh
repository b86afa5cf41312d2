// Pairs of CTAs: clusters of two, whose tiles see the same keys in the same order. Each CTA loads a half of every block into the shared
// memory of both, so that a multiprocessor takes half as much from L2. A buffer is empty when the readers of both are done.
//
// The two tiles are the same rows of two query heads that share a key/value head, where their number is even: whatever the mask, they
// see the same keys. Elsewhere they are neighbouring rows of one head, and the host launches pairs only without a mask. Then the
// second tile of a sequence may have no rows: its CTA loads its half and passes the blocks on.
//
// One CTA, the first, takes tiles from the counter, reads lengths, and tells the other its tile. So both go by the same lengths whatever
// happens to those on the device.
#pragma once

#include "forward/wgmma_scheduler.cuh"

namespace warptile {

// Which tiles a CTA of a pair computes: `TileOrder` for the first one, what it is told for the second one.
template <class Traits> class PairOrder {
  public:
    using Layout = SharedLayout<Traits>;

    __device__ PairOrder(const Forward& params, unsigned char* shared, Layout layout)
        : params(params), shared(shared), layout(layout), order(params), is_first(cluster_rank() == 0)
    {
    }

    __device__ bool done() const { return is_first ? order.done() : ended; }

    __device__ void draw()
    {
        if (is_first)
            order.draw();
    }

    __device__ void advance()
    {
        if (!is_first)
            return;
        order.advance();
        if (order.done())
            tell(Tile::end());
    }

    // Writes the present tile to `tile`; false if the sequence does not have it, or if none is left.
    __device__ bool describe(Tile& tile)
    {
        if (!is_first) {
            listen(tile);
            ended = tile.is_end();
            return !ended;
        }
        const bool exists = order.describe(tile);
        if (exists) {
            Tile other = tile;
            if (pairs_heads(params))
                other.head++;
            else
                other.first_query -= Traits::BLOCK_M;
            tell(other);
        }
        return exists;
    }

  private:
    static constexpr int WORDS = sizeof(Tile) / sizeof(int);

    __device__ void tell(const Tile& tile)
    {
        barrier_wait(layout.mail_empty(), parity ^ 1);
        parity ^= 1;
        const unsigned mail = address_in(shared_address(&Layout::mail(shared)), 1), full = address_in(layout.mail_full(), 1);
        const int* const words = reinterpret_cast<const int*>(&tile);
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            send_in_cluster(mail + i * sizeof(int), words[i], full);
    }

    __device__ void listen(Tile& tile)
    {
        barrier_arrive_expect_bytes(layout.mail_full(), sizeof(Tile));
        barrier_wait(layout.mail_full(), parity);
        parity ^= 1;
        tile = Layout::mail(shared);
        barrier_arrive_in_cluster(address_in(layout.mail_empty(), 0));
    }

    const Forward& params;
    unsigned char* shared;
    const Layout layout;
    TileOrder<Traits> order;
    const bool is_first;
    bool ended = false;  // of the second one
    unsigned parity = 0; // of the next tile's phase
};

template <class Traits> __device__ auto order_of(const Forward& params, unsigned char* shared, SharedLayout<Traits> layout)
{
    if constexpr (Traits::PAIRS)
        return PairOrder<Traits>(params, shared, layout);
    else
        return TileOrder<Traits>(params);
}

} // namespace warptile
