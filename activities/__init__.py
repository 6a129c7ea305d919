"""What touches the world: contracts, activities, providers, tools and stores."""
